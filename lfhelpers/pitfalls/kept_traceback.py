"""An exception that is kept keeps its traceback, the traceback its frames, and the frames all their tensors."""

from __future__ import annotations

import torch

from lfhelpers.measure import census
from lfhelpers.pitfalls.base import About, Held

ABOUT = About(
    "after an error that was caught (out of memory, a bad batch) the memory of that step never comes back",
    "the exception was stored; in a notebook sys.last_exc and the output history do so by themselves",
    "keep its text; or traceback.clear_frames(error.__traceback__), and a new kernel after an interrupt",
    "tensors still held after four caught errors [MiB]")


def break_it() -> float:
    """MiB held by the frames of four stored exceptions."""
    held, errors = Held(), []
    for _ in range(4):
        try:
            _fails(held)
        except ValueError as error:
            errors.append(error)
    return held.mib()


def detect(broken: bool = True) -> str:
    """What a census names as the holder; empty where nothing became more."""
    held, kept = Held(), []
    before = census.census()
    for _ in range(4):
        try:
            _fails(held)
        except ValueError as error:
            kept.append(error if broken else str(error))
    found = census.grown(before, 4)
    return str(found[0]) if found else ""


def fix_it() -> float:
    """MiB held where only the text is stored."""
    held, errors = Held(), []
    for _ in range(4):
        try:
            _fails(held)
        except ValueError as error:
            errors.append(str(error))
    return held.mib()


def _fails(held: Held) -> None:
    activation = held(torch.ones(1024, 1024))
    raise ValueError(f"a bad batch, after {activation.shape[0]} rows")
