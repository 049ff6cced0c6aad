"""Exposed communication: the part of the gradient exchange that backward did not hide, and what it consists of.

DDP times its first ten iterations and every hundredth, with events that cost no profiler; iteration n is on record once
forward n + 1 has begun. The first ones carry the set-up of connections and a single bucket (buckets are rebuilt after
the first), so iterations from the fourth on count. A replayed CUDA graph runs none of DDP's timers, and InPlace has
none: there the profiled last step tells, whose kernels lie on one timeline (measure.exposed).

A rank that arrives early waits in the exchange for the others. Iteration by iteration the least exposed time of all
ranks is the transfer, which buckets and compression shorten; the rest is waiting for late ranks, which they don't.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers import overlap
from lfhelpers.measure.exposed import Exposure, split, split_each
from lfhelpers.train.ranks import Ranks

FIRST, LAST, EVERY = 4, 10, 100
"""DDP's iterations that count: the first, the last one in a row, and the distance of those after it."""
LATE = 3
"""Steps after a timed iteration by which it is on record; a static graph's exchanges are up to two ahead of steps."""


class ExposedCommunication:
    """Give it the count of steps done after each step; `live` is the newest figure, `result` all of it."""

    def __init__(self, model: nn.Module, captured: bool = False) -> None:
        """captured: steps will be replayed from a CUDA graph, so DDP's timers tell nothing of them."""
        self._model = model
        self._ddp = model if isinstance(model, DistributedDataParallel) and not captured else None
        self.iterations: dict[int, float] = {}
        """Exposed milliseconds of DDP's iterations."""
        self.live: float | None = None
        """Mean of the newest seven; None until there is one, with one rank, and where steps are replayed."""
        self.profiled: Exposure | None = None
        """What the run's profiled step shows of this rank."""

    def after_step(self, done: int) -> None:
        """Take a reading where there may be a new one."""
        if self._ddp is None or not (done <= LAST + LATE or done % EVERY == LATE):
            return
        data = self._ddp._get_ddp_logging_data()
        iteration = int(data.get("iteration", 0))
        if iteration >= FIRST and iteration not in self.iterations:
            whole, hidden = data.get("backward_comm_time", 0), data.get("backward_compute_comm_overlap_time", 0)
            self.iterations[iteration] = max(0.0, float(whole) - float(hidden)) / 1e6
            self.live = statistics.fmean(list(self.iterations.values())[FIRST - LAST - 1:])

    def result(self, ranks: Ranks) -> dict[str, Any]:
        """For the summary, on every rank; every rank must call it. {} with one rank.

        Mean milliseconds a step: `exposed_ms` (mean over ranks) = `transfer_ms` + `waiting_ms`; `source` says where
        from; what DDP's buckets are; and of the profiled step each collective's transfer and waiting.
        """
        if ranks.world == 1:
            return {}
        gathered = ranks.gather((self.iterations, self.profiled))
        found: dict[str, Any] = of_timers([iterations for iterations, _ in gathered])
        profiles = [profile for _, profile in gathered if profile is not None]
        step = of_profiles(profiles) if len(profiles) == ranks.world else {}
        if self._ddp is None:  # profilers start unevenly, so what ranks waited for each other there is theirs
            transfer = step.get("transfer_ms", 0.0)
            found = {"exposed_ms": transfer, "transfer_ms": transfer, "waiting_ms": 0.0}
        found["source"] = "DDP's timers" if self._ddp else "the profiled step, waiting left out" if step else \
            "none: without DDP's timers it needs log.probe=true"
        return found | overlap.described(self._model) | ({"profiled": step} if step else {})


def of_timers(ranks: Sequence[Mapping[int, float]]) -> dict[str, float]:
    """Exposed, transfer and waiting from {iteration: exposed ms} of each rank, over the iterations that all have."""
    common = sorted(set.intersection(*(set(iterations) for iterations in ranks)))
    parts = [split([iterations[iteration] for iterations in ranks]) for iteration in common]
    transfer = statistics.fmean(part.transfer_ms for part in parts) if parts else 0.0
    waiting = statistics.fmean(part.waiting_ms for part in parts) if parts else 0.0
    return {"exposed_ms": transfer + waiting, "transfer_ms": transfer, "waiting_ms": waiting}


def of_profiles(ranks: Sequence[Exposure]) -> dict[str, Any]:
    """The same from every rank's profiled step, and in `collectives` (transfer, waiting) of each, in order."""
    exposed = split([profile.exposed_ms for profile in ranks])
    each = split_each([profile.durations for profile in ranks])
    return {"exposed_ms": exposed.transfer_ms + exposed.waiting_ms, "transfer_ms": exposed.transfer_ms,
            "waiting_ms": exposed.waiting_ms, "share": statistics.fmean(profile.share for profile in ranks),
            "collectives": [[part.transfer_ms, part.waiting_ms] for part in each]}
