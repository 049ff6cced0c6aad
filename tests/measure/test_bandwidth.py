"""A GPU's memory bandwidth by its full name, and nothing for names that only look alike."""

import pytest

from lfhelpers.measure.bandwidth import peak_tb_s


@pytest.mark.parametrize(("name", "peak"), [
    ("NVIDIA H200", 4.8), ("NVIDIA H100 80GB HBM3", 3.35), ("NVIDIA A100-SXM4-40GB", 1.555),
    ("NVIDIA A100-SXM4-80GB", 2.039), ("Tesla V100-DGXS-32GB", 0.9)])
def test_known_gpus(name, peak):
    assert peak_tb_s(name) == (peak, "vendor's datasheet")


@pytest.mark.parametrize("name", ["NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090 Laptop GPU", ""])
def test_a_slice_or_another_part_has_none(name):
    assert peak_tb_s(name) == (None, f"no memory bandwidth is on record for '{name}'")
