"""One rank computes longer than the others: all wait for it, and the wait looks like communication."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from lfhelpers.launch import launch
from lfhelpers.pitfalls.base import About, Small, elsewhere, job
from lfhelpers.workloads.base import Batch

ABOUT = About(
    "steps take longer on several ranks than on one, and a profile shows long all-reduces",
    "a rank is late (a busy host, a lower clock, another's process on its cores), and the exchange waits for the last",
    "find the rank by what each does before the exchange, and the cause on its host: CPU load, clocks, binding",
    "median step of two ranks [ms]")
LATE = 0.03
"""Seconds by which the last rank is late."""


class LateSmall(Small):
    """Small, whose last rank sleeps in its forward, as if its cores were somebody else's."""

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Small's loss, late on the last of several ranks: by so much after all have come here."""
        if dist.is_initialized():
            dist.barrier()
        if int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1:
            time.sleep(LATE)
        return super().loss(model, batch, draws)


def break_it() -> float:
    """Median milliseconds of a step where the second rank is 30 ms late."""
    return float(_summary(late=True)["step_ms"]["median"])


def detect(broken: bool = True) -> str:
    """What the run's summary says of a late rank; empty where there is none."""
    return str(_summary(late=broken).get("late_rank", {}).get("text", ""))


def fix_it() -> float:
    """Median milliseconds of the same step without it."""
    return float(_summary(late=False)["step_ms"]["median"])


@functools.cache
def _summary(late: bool) -> dict[str, Any]:
    """The summary of a run on two ranks, started once a process."""
    with job("steps=16", "batch.micro=4", use=LateSmall if late else Small) as chosen, elsewhere():
        return launch(chosen, 2, watch=False).summary
