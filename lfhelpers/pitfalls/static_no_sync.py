"""A static graph whose first pass is under no_sync: DDP learns the graph in passes that it was told not to see."""

from __future__ import annotations

import contextlib
import functools
from itertools import pairwise

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers.overlap import settling
from lfhelpers.pitfalls import lone
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "an internal assert in the first steps; or, with other versions, ranks that drift apart and say nothing",
    "accumulation starts under no_sync, and static_graph=True learns what to exchange in its first passes",
    "exchange in the first two passes in any case; lfhelpers does, and compares gradients between ranks",
    "steps of six that end with an exchange")
STEPS, MICRO = 6, 4


def break_it() -> float:
    """Exchanged steps, where all but each step's last pass are under no_sync."""
    return float(_exchanged(settled=False)[0])


def detect(broken: bool = True) -> str:
    """What the count of exchanges says, and how it ended; empty where each step has one."""
    count, end = _exchanged(settled=not broken)
    return f"{count} of {STEPS} steps were exchanged{end}" if count < STEPS else ""


def fix_it() -> float:
    """Exchanged steps, where the passes exchange in which DDP learns the graph."""
    return float(_exchanged(settled=True)[0])


@functools.cache
def _exchanged(settled: bool) -> tuple[int, str]:
    return lone.call(_count, settled)


def _count(settled: bool) -> tuple[int, str]:
    """(Steps that sent something, how it ended if before its time)."""
    model = DistributedDataParallel(nn.Linear(4, 2), static_graph=True)
    first, sent = settling(model) if settled else 0, lone.exchanges(model)
    begins, end = [], ""
    try:
        for step in range(STEPS):
            begins.append(len(sent))
            for micro in range(MICRO):
                exchanges = micro == MICRO - 1 or step * MICRO + micro < first
                with contextlib.nullcontext() if exchanges else model.no_sync():
                    model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        end = f", then: {str(error).partition(' at ')[0]}"
    return sum(before < after for before, after in pairwise([*begins, len(sent)])), end
