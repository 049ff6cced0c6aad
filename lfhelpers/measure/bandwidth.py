"""How fast a GPU can read its own memory at most, by its name: the other roof beside measure.hardware.peak_tflops.

What is not known is None: a laptop part or a slice finds no row instead of its bigger brother's.
"""

from __future__ import annotations

import re

_PEAKS = {
    r"B200": 8.0, r"H200( NVL)?": 4.8, r"H100 80GB HBM3|H800": 3.35, r"H100 PCIe": 2.0, r"H20": 4.0,
    r"A[18]00-(SXM4|PCIE)-40GB": 1.555, r"A[18]00-SXM4-80GB": 2.039, r"A[18]00[- ]PCIE-80GB|A[18]00 80GB PCIe": 1.935,
    r"L40S": 0.864, r"L4": 0.3, r"RTX A6000": 0.768, r"GeForce RTX 3090": 0.936, r"GeForce RTX 4090": 1.008,
    r"Tesla V100-(SXM2|PCIE|DGXS)-.*": 0.9,
}
"""A GPU's full name to TB/s, as its vendor's datasheet gives it."""


def peak_tb_s(gpu_name: str) -> tuple[float | None, str]:
    """(peak in TB/s, source) of a GPU's memory by its NVML or torch name; (None, reason) where it isn't certain."""
    short = gpu_name.removeprefix("NVIDIA ").strip()
    peak = next((peak for pattern, peak in _PEAKS.items() if re.fullmatch(pattern, short)), None)
    return (peak, "vendor's datasheet") if peak else (None, f"no memory bandwidth is on record for '{gpu_name}'")
