"""`no_sync` around backward alone: DDP decides in forward, so every micro-batch is exchanged all the same."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.pitfalls import lone
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "accumulation saves no communication, though no_sync is there",
    "the forward stands before the with block, and DDP has decided there",
    "forward and backward inside; lfhelpers' step has them in one place",
    "exchanges in a step of four micro-batches and one bucket")
MICRO = 4


def break_it() -> float:
    """Exchanges where only backward is inside."""
    return float(_exchanges(forward_inside=False))


def detect(broken: bool = True) -> str:
    """What the count of exchanges says, against the number of buckets; empty where they agree."""
    count = _exchanges(forward_inside=not broken)
    return f"{count} exchanges a step for 1 bucket: no_sync does not hold" if count > 1 else ""


def fix_it() -> float:
    """Exchanges where forward and backward are inside."""
    return float(_exchanges(forward_inside=True))


@functools.cache
def _exchanges(forward_inside: bool) -> int:
    return lone.call(_count, forward_inside)


def _count(forward_inside: bool) -> int:
    """Exchanges of one step."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    counted = lone.exchanges(model)
    for micro in range(MICRO):
        held = model.no_sync() if micro < MICRO - 1 else contextlib.nullcontext()
        if forward_inside:
            with held:
                model(torch.ones(2, 4)).sum().backward()
        else:
            loss = model(torch.ones(2, 4)).sum()
            with held:
                loss.backward()
    return len(counted)
