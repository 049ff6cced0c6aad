"""`no_sync` around backward alone: DDP decides in forward, so every micro-batch is exchanged all the same."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.measure import isolated
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
    return isolated.call(_count, forward_inside)


def _count(forward_inside: bool) -> int:
    """In a process of its own: a group of one rank counts as well as one of many."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 2))
    counted = []

    def hook(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        counted.append(bucket.index())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
    model.register_comm_hook(None, lambda _, bucket: hook(bucket))
    for micro in range(MICRO):
        held = model.no_sync() if micro < MICRO - 1 else contextlib.nullcontext()
        if forward_inside:
            with held:
                model(torch.ones(2, 4)).sum().backward()
        else:
            loss = model(torch.ones(2, 4)).sum()
            with held:
                loss.backward()
    dist.destroy_process_group()
    return len(counted)
