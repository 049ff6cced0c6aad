"""Names the rank that all others wait for, and what it does with the time.

All ranks take equally long for a step, since they wait for each other: the late one shows only in what each does before
the exchange. So every rank sums up the parts of its steps in which nobody waits for a peer, and at the end of the run
they are compared step by step. A rank is late where it is the latest in four of five steps, by a tenth of a step in the
median; chance moves the last place around. Beside it stand the part that is longer, how busy its host's cores were with
work that is not the run's, and what held its GPU's clock down. It costs one exchange of some hundred numbers.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from torch import nn

from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import Ranks

OWN = ("data_wait", "host_to_device", "forward", "other")
"""Parts of a step in which a rank waits for no other one."""
KEPT = 200
LEAST_STEPS = 8
OFTEN, MUCH = 0.8, 0.1
"""Share of steps in which a late rank is the latest, and share of a step by which."""
BUSY = 0.25
"""Share of a host's cores in other hands from which that is named as the cause."""


@dataclass(frozen=True)
class Seen:
    """Of one rank: milliseconds of each of OWN by step, of each step, its host, and shares of the host's cores.

    busy: those at work; used: those that worked for this rank.
    """

    own: dict[str, list[float]]
    step_ms: list[float]
    host: str
    busy: float
    used: float
    slowed: dict[str, float] = field(default_factory=dict)
    """Percent of the run in which a reason held its GPU's clock down, by reason (measure.system)."""

    def total(self, step: int) -> float:
        """Its own milliseconds of a step."""
        return sum(self.own[name][step] for name in OWN)


@dataclass(frozen=True)
class Late:
    """The late rank: milliseconds behind the next one in the median, share of steps in which it was the latest."""

    rank: int
    ms: float
    share: float
    part: str
    host: str
    foreign: float
    slowed: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        cause = f"; {self.foreign:.0%} of the cores of {self.host} do other work" if self.foreign >= BUSY else ""
        cause += "".join(f"; {why} holds its GPU's clock down in {share:.0f} % of the run"
                         for why, share in self.slowed.items())
        return (f"rank {self.rank} is late by {self.ms:.3g} ms in {self.share:.0%} of the steps, in its {self.part}"
                f"{cause}: the other ranks wait for it in backward")


class Straggler(Hook):
    """Adds `late_rank` to the summary where there is one, and prints it."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._rows: list[dict[str, Any]] = []
        self._untimed = 0

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Read the clocks of the host and of this rank's processes."""
        self._untimed = job.untimed(self._ranks.device.type)
        self._clocks = clocks()

    def step(self, row: dict[str, Any]) -> None:
        """Keep the newest steps after the warm-up."""
        if self._ranks.world > 1 and row["step"] > self._untimed and not row["probe"]:
            self._rows = [*self._rows[-KEPT + 1:], row]

    def run_end(self, summary: dict[str, Any]) -> None:
        """Compare; every rank takes part."""
        if self._ranks.world == 1:
            return
        total, busy, used = (now - before for now, before in zip(clocks(), self._clocks, strict=True))
        own = {name: [row["ms"][name] for row in self._rows] for name in OWN}
        mine = Seen(own, [row["step_ms"] for row in self._rows], platform.node(), busy / max(total, 1e-9),
                    used / max(total, 1e-9), summary["utilisation"].get("gpu_slowed", {}))
        found = late(self._ranks.gather(mine))
        if found is not None:
            summary["late_rank"] = asdict(found) | {"text": str(found)}
            if self._ranks.first:
                print(f"{found}.", flush=True)


def late(seen: Sequence[Seen]) -> Late | None:
    """The rank that the others wait for; None where there is none, or fewer than LEAST_STEPS steps to judge by."""
    steps = min(len(item.step_ms) for item in seen)
    if steps < LEAST_STEPS or len(seen) < 2:
        return None
    totals = [[item.total(step) for item in seen] for step in range(steps)]
    last = [row.index(max(row)) for row in totals]
    rank = statistics.mode(last)
    behind = statistics.median(row[rank] - max(row[:rank] + row[rank + 1:]) for row in totals)
    share = last.count(rank) / steps
    if share < OFTEN or behind < MUCH * statistics.median(seen[0].step_ms[:steps]):
        return None
    def excess(name: str) -> float:
        return min(statistics.median(seen[rank].own[name]) - statistics.median(item.own[name])
                   for place, item in enumerate(seen) if place != rank)
    here = [item for item in seen if item.host == seen[rank].host]
    foreign = max(0.0, seen[rank].busy - sum(item.used for item in here))
    return Late(rank, behind, share, max(OWN, key=excess), seen[rank].host, foreign, seen[rank].slowed)


def clocks() -> tuple[float, float, float]:
    """CPU seconds of this host: of all cores, of those at work, and those that this process and its children spent."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # they are in user already
    me = psutil.Process()
    used = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            spent = process.cpu_times()
            used += spent.user + spent.system
        except psutil.NoSuchProcess:
            continue
    return total, total - times.idle - getattr(times, "iowait", 0.0), used
