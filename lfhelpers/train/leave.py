"""Leaving before a time limit: all ranks stop after the same step, with a checkpoint, when any of them is asked to.

Slurm tells a job a while before it ends it. The word reaches each host's supervisor, at no agreed moment, and ranks'
hosts run ahead of their devices by steps that nobody counts; so ranks agree, by a small all-reduce that makes each wait
for the slowest, once in EVERY seconds, at steps that they agreed on the time before. Jobs without a limit don't.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from lfhelpers import processes
from lfhelpers.train.ranks import Ranks

EVERY = 5.0  # seconds, about, between two agreements


class Leave:
    """Ask it after each step whether to leave; every rank must."""

    def __init__(self, ranks: Ranks, first: int = 0) -> None:
        """first: steps done when the run is continued."""
        path = os.environ.get(processes.LEAVE)
        self._asked = Path(path) if path else None
        self._ranks = ranks
        self._last, self._at = first, time.monotonic()
        self._next = first + 1

    def agreed(self, done: int) -> bool:
        """Whether all ranks leave after step `done`; on other steps than the agreed ones it costs nothing."""
        if self._asked is None or done < self._next:
            return False
        now = time.monotonic()
        asked, step = self._most([float(self._asked.exists()), (now - self._at) / (done - self._last)])
        self._last, self._at = done, now
        self._next = done + max(1, int(EVERY / max(step, 1e-6)))
        return asked > 0

    def now(self) -> NoReturn:
        """End this rank with the exit code that says so."""
        raise SystemExit(processes.LEFT)

    def _most(self, values: list[float]) -> list[float]:
        if self._ranks.world == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self._ranks.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [float(value) for value in tensor.tolist()]
