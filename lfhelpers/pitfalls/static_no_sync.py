"""A static graph whose first pass is under no_sync: DDP learns the graph in passes that it was told not to see."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers.overlap import settling
from lfhelpers.measure import isolated
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
    return isolated.call(_count, settled)


def _count(settled: bool) -> tuple[int, str]:
    """In a process of its own, a group of one: (steps that sent something, how it ended if before its time)."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 2), static_graph=True)
    sent: set[int] = set()
    first = settling(model) if settled else 0

    def hook(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        sent.add(now[0])
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
    now = [0]
    model.register_comm_hook(None, lambda _, bucket: hook(bucket))
    try:
        for step in range(STEPS):
            now[0] = step
            for micro in range(MICRO):
                exchanges = micro == MICRO - 1 or step * MICRO + micro < first
                with contextlib.nullcontext() if exchanges else model.no_sync():
                    model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        return len(sent), f", then: {str(error).partition(' at ')[0]}"
    finally:
        dist.destroy_process_group()
    return len(sent), ""
