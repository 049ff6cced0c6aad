"""Names the rank that all others wait for, and what it does with the time.

All ranks take equally long for a step, since they wait for each other: the late one shows only in what each does before
the exchange. So every rank sums up the parts of its steps in which nobody waits for a peer, and at the end of the run
they are compared step by step. A rank is late where it is the latest in four of five steps, by a tenth of a step in the
median; chance moves the last place around. Beside it stand the part that is longer, how busy its host's cores were with
work that is not the run's, and what held its GPU's clock down. It costs one exchange of some hundred numbers.

A run that is killed never comes to its end. So each rank also leaves its own times in the run's folder now and then,
which costs no exchange, and `left` reads what lies there; how many threads a rank computes with is told along.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import psutil
import torch
from torch import nn

from lfhelpers.measure.system import Monitor
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
"""Share of a rank's cores in other hands from which that is named as the cause."""
FIRST, MOST = 32, 512
"""Timed steps after which a rank leaves its times first, twice as many the next time, and never more than MOST."""
SPARSE = 5.0
"""Seconds between looks at the clocks of a GPU for that file; the run's own monitor looks oftener."""


@dataclass(frozen=True)
class Seen:
    """Of one rank: milliseconds of each of OWN by step, of each step, its host, and shares of its cores.

    busy: those at work; used: those that worked for this rank; cores: those that it may use.
    """

    own: dict[str, list[float]]
    step_ms: list[float]
    host: str
    busy: float
    used: float
    slowed: dict[str, float] = field(default_factory=dict)
    """Percent of the run in which a reason held its GPU's clock down, by reason (measure.system)."""
    cores: tuple[int, ...] = ()
    threads: int = 1
    """With which torch computes there."""

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
        cause = f"; {self.foreign:.0%} of its cores on {self.host} do other work" if self.foreign >= BUSY else ""
        cause += "".join(f"; {why} holds its GPU's clock down in {share:.0f} % of the run"
                         for why, share in self.slowed.items())
        return (f"rank {self.rank} is late by {self.ms:.3g} ms in {self.share:.0%} of the steps, in its {self.part}"
                f"{cause}: the other ranks wait for it in backward")


class Straggler(Hook):
    """Adds `late_rank` to the summary where there is one, and prints it; leaves pace-rank-N.json on the way."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._rows: list[dict[str, Any]] = []
        self._untimed = 0
        self._timed, self._next = 0, FIRST
        self._monitor: Monitor | None = None
        self._aside = ThreadPoolExecutor(1, "lfhelpers-pace")
        self._leaving: Future[None] | None = None
        self._watched = ranks.world > 1 or ranks.device.type == "cuda"

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Read the clocks of this rank's cores and processes."""
        self._untimed = job.untimed(self._ranks.device.type)
        self._run = run
        self._clocks = clocks()
        self._monitor = Monitor(interval=SPARSE).start() if self._watched else None

    def step(self, row: dict[str, Any]) -> None:
        """Keep the newest steps after the warm-up; now and then leave them in the run's folder."""
        if not self._watched or row["step"] <= self._untimed or row["probe"]:
            return
        self._rows = [*self._rows[-KEPT + 1:], row]
        self._timed += 1
        if self._timed == self._next:
            self._next += min(self._next, MOST)
            self._settled()
            self._leaving = self._aside.submit(self._leave, self._rows, self._monitor)
            self._monitor = Monitor(interval=SPARSE).start()

    def run_end(self, summary: dict[str, Any]) -> None:
        """Compare; every rank takes part."""
        if self._watched:
            self._settled()
            self._leave(self._rows, self._monitor)
        if self._ranks.world == 1:
            return
        found = late(self._ranks.gather(self._mine(self._rows, summary["utilisation"].get("gpu_slowed", {}))))
        if found is not None:
            summary["late_rank"] = asdict(found) | {"text": str(found)}
            if self._ranks.first:
                print(f"{found}.", flush=True)

    def close(self) -> None:
        """End the monitor, and what is still being written."""
        if self._monitor is not None:
            self._monitor.stop()
        self._aside.shutdown()

    def _settled(self) -> None:
        """Wait for what was left last, and raise what went wrong with it."""
        if self._leaving is not None:
            self._leaving.result()

    def _leave(self, rows: list[dict[str, Any]], monitor: Monitor | None) -> None:
        """Off the training's thread: looking at all processes and waiting for the disk takes longer than a step."""
        assert monitor is not None, "the run has not started"
        usage = monitor.stop()
        self._run.write(f"pace-rank-{self._ranks.rank}.json", {
            "rank": self._ranks.rank, "steps": [row["step"] for row in rows],
            "seen": asdict(self._mine(rows, usage["gpu_slowed"])), "utilisation": usage})

    def _mine(self, rows: list[dict[str, Any]], slowed: dict[str, float]) -> Seen:
        total, busy, used = (now - before for now, before in zip(clocks(), self._clocks, strict=True))
        own = {name: [row["ms"][name] for row in rows] for name in OWN}
        return Seen(own, [row["step_ms"] for row in rows], platform.node(), busy / max(total, 1e-9),
                    used / max(total, 1e-9), slowed, my_cores(), torch.get_num_threads())


def left(run: Run) -> list[tuple[int, Seen]]:
    """(rank, what it saw) as the ranks have left it in the run's folder, over the steps that all of them tell of."""
    found = sorted((run.read(path.name) for path in run.path.glob("pace-rank-*.json")), key=lambda item: item["rank"])
    common = sorted(set.intersection(*(set(item["steps"]) for item in found))) if found else []
    told = []
    for item in found:
        places = [item["steps"].index(step) for step in common]
        seen = Seen(**item["seen"] | {"cores": tuple(item["seen"]["cores"])})
        told.append((item["rank"], replace(
            seen, own={name: [values[place] for place in places] for name, values in seen.own.items()},
            step_ms=[seen.step_ms[place] for place in places])))
    return told


def crowded(seen: Sequence[Seen]) -> str:
    """A sentence where ranks on the same cores compute with more threads than there are cores; empty for none.

    One thread a rank is never too many: there are then only more ranks than cores.
    """
    for item in seen:
        here = [other.threads for other in seen if (other.host, other.cores) == (item.host, item.cores)]
        if item.cores and max(here) > 1 and sum(here) > len(item.cores):
            return (f"{len(here)} ranks on {item.host} compute with {sum(here)} threads on {len(item.cores)} cores; "
                    f"set OMP_NUM_THREADS={max(1, len(item.cores) // len(here))}, or leave it to lfhelpers")
    return ""


def late(seen: Sequence[Seen]) -> Late | None:
    """The rank that the others wait for; None where there is none, or fewer than LEAST_STEPS steps to judge by."""
    steps = min((len(item.step_ms) for item in seen), default=0)
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
    here = [item for item in seen if item.host == seen[rank].host and set(item.cores) == set(seen[rank].cores)]
    foreign = max(0.0, seen[rank].busy - sum(item.used for item in here))
    return Late(rank, behind, share, max(OWN, key=excess), seen[rank].host, foreign, seen[rank].slowed)


def my_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may use; empty where the system doesn't tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def clocks() -> tuple[float, float, float]:
    """CPU seconds of the cores that this process may use: of all, of those at work, and those that it has spent.

    Its children's count as its own. A host's other cores don't matter: who is bound to one competes for that one alone.
    """
    every = psutil.cpu_times(percpu=True)
    mine = [every[core] for core in my_cores() if core < len(every)] or every
    total = busy = used = 0.0
    for times in mine:
        here = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # they are in user already
        total += here
        busy += here - times.idle - getattr(times, "iowait", 0.0)
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            spent = process.cpu_times()
            used += spent.user + spent.system
        except psutil.NoSuchProcess:
            continue
    return total, busy, used
