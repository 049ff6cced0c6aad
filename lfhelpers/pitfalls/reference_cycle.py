"""Objects that refer to each other: what they hold is freed when Python's collector comes round, and it may not."""

from __future__ import annotations

import gc

import torch
from torch import Tensor

from lfhelpers.pitfalls.base import About, Held, uncollected

ABOUT = About(
    "memory rises for many steps and then falls at once; a gc.collect() by hand frees gigabytes",
    "each step makes an object that refers to itself, as callbacks and hooks bound to their owner do; the collector "
    "counts objects, not bytes, so two large tensors don't call it",
    "break the cycle (weakref, or a function of its own), and collect once after warm-up",
    "tensors held after eight steps [MiB]")


class Step:
    """A step's record; `bound` gives it a callback that refers back to it."""

    def __init__(self, activation: Tensor, bound: bool) -> None:
        self.activation = activation
        self.after = self.done if bound else None

    def done(self) -> None:
        """What would be called later."""


def break_it() -> float:
    """MiB held after eight steps whose records refer to themselves."""
    return _run(bound=True)[0]


def detect(broken: bool = True) -> str:
    """What a collection frees; empty where it frees nothing."""
    held, after = _run(bound=broken)
    return f"a collection frees {held - after:.3g} MiB: objects refer to each other" if held > after else ""


def fix_it() -> float:
    """MiB held by the same steps without the cycle."""
    return _run(bound=False)[0]


def _run(bound: bool) -> tuple[float, float]:
    """(MiB held after the steps, MiB held after a collection)."""
    held = Held()
    with uncollected():
        for _ in range(8):
            Step(held(torch.ones(256, 1024)), bound)
        before = held.mib()
        gc.collect()
        return before, held.mib()
