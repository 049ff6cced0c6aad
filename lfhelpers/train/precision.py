"""Mixed precision: which forward runs in which dtype, and the gradient scaler that only fp16 needs.

    mode   matrix products                  range and step of what they see   scaler
    fp32   fp32, with no shortcut anywhere  1e-38..3e38, 2^-23                none
    tf32   inputs cut to 10 bits of step    fp32's range, 2^-10               none
    bf16   autocast                         fp32's range, 2^-7                none
    fp16   autocast                         6e-8..65504, 2^-10                scales the loss, skips overflows

bf16 has the range of fp32, so its gradients need no scaling (PyTorch AMP recipe). Weights and optimizer states stay
fp32, in the model or as masters in the optimizer; frozen weights may be bf16 (workloads.vla). tf32 and strict fp32 are
settings of the process and not of a region, so they hold for a block and are put back after it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal

import torch

from lfhelpers.errors import LfError
from lfhelpers.measure import formats
from lfhelpers.recipe import PrecisionFields

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
TF32_CAPABILITY = (8, 0)


class Precision:
    """Autocast for each forward, and the scaler (disabled unless the mode is fp16)."""

    def __init__(self, fields: PrecisionFields, device: torch.device, cache: bool = True) -> None:
        """cache: keep a weight's cast for its next use; selective recomputation counts casts and can't have it."""
        self.mode = formats.mode(fields, device.type)
        self._cache = cache
        self._device = device.type
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=fields.init_scale, growth_interval=fields.growth_interval,
            enabled=self.mode == "fp16")

    def autocast(self) -> torch.autocast:
        """The context of one forward pass."""
        return torch.autocast(self._device, AUTOCAST.get(self.mode, torch.float32), enabled=self.mode in AUTOCAST,
                              cache_enabled=self._cache)


@contextlib.contextmanager
def arithmetic(mode: Literal["auto", "fp32", "tf32", "bf16", "fp16"], device: torch.device) -> Iterator[None]:
    """What fp32 matrix products and convolutions may do inside the block: nothing short of fp32, or tf32.

    The other modes leave the process as it is; auto is settled (measure.formats) before a recipe comes here. Raises
    LfError where the device has no tf32. The older of torch's two interfaces is used throughout: it sets both, and
    mixing them makes torch raise wherever it reads the older.
    """
    if mode not in ("fp32", "tf32"):
        yield
        return
    if mode == "tf32":
        _needs_tf32(device)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = mode == "tf32"  # on by default: strict fp32 must say no
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextlib.contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Kernels that add in a fixed order inside the block, where torch has them; it warns of those it has not.

    cuBLAS reads its setting when it is first used in a process, so enter the block before that (torch's notes on
    reproducibility).
    """
    if not on:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    filling, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False  # it costs bandwidth
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = filling


def _needs_tf32(device: torch.device) -> None:
    if device.type != "cuda":
        raise LfError("precision.mode='tf32' needs a GPU, and this run has none; take 'fp32' or 'bf16'.")
    capability = torch.cuda.get_device_capability(device)
    if capability < TF32_CAPABILITY:
        raise LfError(f"precision.mode='tf32' needs compute capability 8.0, and {torch.cuda.get_device_name(device)} "
                      f"has {capability[0]}.{capability[1]}; take 'fp32' or 'fp16'.")
