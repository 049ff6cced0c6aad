"""The closed form of FLOPs against torch's own counter, on real passes."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lfhelpers.workloads.vla.flops import breakdown, register_missing_formulas
from lfhelpers.workloads.vla.workload import Vla
from tests.workloads.vla_batches import batch, job

SWITCHES = [
    (),
    ("workload.compute_logits=true", "workload.per_sample_gather=true"),
    ("workload.tune_vision=true",),
    ("workload.tune_language=true",),
    ("workload.tune_top_layers=0",),
    ("workload.text_loss=1",),
    ("workload.tune_vision=true", "workload.tune_top_layers=0", "workload.text_loss=1", "workload.compute_logits=true"),
]


def counted(workload: Vla, device: str, samples: int) -> float:
    """FLOPs a sample of one forward and backward pass, by torch's counter."""
    register_missing_formulas()
    inputs = {key: value.to(device) for key, value in batch(workload, samples).items()}
    draws = {key: value.to(device) for key, value in workload.draws(samples, torch.Generator()).items()}
    with torch.device(device):
        model = workload.model()
    with FlopCounterMode(display=False) as counter:
        workload.loss(model, inputs, draws)[0].backward()
    return counter.get_total_flops() / samples


@pytest.mark.parametrize(("size", "overrides"), [*(("tiny", switches) for switches in SWITCHES), ("small", SWITCHES[0]),
                                                 ("full", SWITCHES[0]), ("full", SWITCHES[1]), ("full", SWITCHES[-1])])
def test_equal_to_the_counter_where_attention_is_not_fused(size: str, overrides: tuple[str, ...]) -> None:
    """On the meta device attention is plain products, so nothing is recomputed: equality, to the last FLOP."""
    workload = Vla(job(f"workload.size={size}", *overrides))
    assert workload.flops_per_sample() == counted(workload, "meta", 2)


@pytest.mark.parametrize("overrides", SWITCHES[:-1])
def test_within_two_percent_of_a_real_pass(overrides: tuple[str, ...]) -> None:
    """A flash kernel computes the scores again in its backward pass, which the counter counts and we do not."""
    workload = Vla(job(*overrides))
    real = counted(workload, "cpu", 2)
    assert workload.flops_per_sample() == pytest.approx(real, rel=0.02)
    assert workload.flops_per_sample() < real


def test_within_two_percent_of_a_real_pass_of_small() -> None:
    workload = Vla(job("workload.size=small"))
    assert workload.flops_per_sample() == pytest.approx(counted(workload, "cpu", 1), rel=0.02)


def test_published_figures() -> None:
    """GFLOP of the published step's parts; the DiT is ours, whose attention projects what it attends to and no more."""
    workload = Vla(job("workload.size=full", "workload.compute_logits=true"))
    parts = breakdown(workload.size, workload.job.workload)
    assert {name: round(part.forward / 1e9, 1) for name, part in parts.items()} == {
        "vision": 564.2, "decoder": 325.7, "logits": 123.6, "dit": 106.0, "embodiment": 0.9}
    assert {name: round(part.backward / part.forward, 2) for name, part in parts.items()} == {
        "vision": 0, "decoder": 0.5, "logits": 0, "dit": 2.0, "embodiment": 1.98}
    totals = {size: Vla(job(f"workload.size={size}")).flops_per_sample() / 1e9 for size in ("full", "small", "tiny")}
    assert totals == pytest.approx({"full": 1373.166, "small": 86.468, "tiny": 0.0914}, rel=1e-3)
