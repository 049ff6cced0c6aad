"""What an ablation found: the step with one thing taken away at a time, and a model of the step made from it.

A variant's step is its ratio to the full one, by the median over neighbouring blocks, times the full one's median: what
drifts hits both and cancels. Of several ranks a step is as long as the slowest rank's.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from lfhelpers.measure.pace import Pace, pace
from lfhelpers.runs import Run

LEAST_STEPS = 10
FILE = "ablation.json"
FULL, CACHED, NO_EXCHANGE, NO_UPDATE, FORWARD, ONE, HALF, ANSWERED = (
    "full", "cached batch", "no exchange", "no optimizer", "forward only", "batch 1", "half batch", "reads answered")
MEANING = {
    FULL: "as it is trained", CACHED: "batches that lie on the device: no loader, no copies",
    NO_EXCHANGE: "each rank keeps its gradients", NO_UPDATE: "gradients are dropped: no clipping, no update",
    FORWARD: "the loss alone", ONE: "one sample a micro-batch: about what the host needs for its launches",
    HALF: "half the micro-batch", ANSWERED: "values that the host reads are told from a recording"}


@dataclass(frozen=True)
class Ablation:
    """Times in milliseconds of one optimizer step, by variant, rank and block.

    load_ms and load_cpu_ms: what the loader alone needs for a micro-batch, by the clock and in CPU time of its workers;
    step_cpu_ms: CPU time of the step on cached batches. fused_ms: a fused update of as many parameters, None where the
    recipe has one. observer_us: what the profiler costs an operator of the host, 0 where nothing was traced. state:
    fingerprints of the model before and after.
    """

    name: str
    device: str
    hardware: str
    micro: int
    accumulate: int
    steps: int
    ms: Mapping[str, tuple[tuple[float, ...], ...]]
    load_ms: float
    load_cpu_ms: float
    step_cpu_ms: float
    fused_ms: float | None
    observer_us: float
    cores: int
    state: Mapping[str, str]

    @classmethod
    def of_run(cls, run: Run) -> Ablation | None:
        """The ablation in a run's folder; None where there is none."""
        found = run.read(FILE)
        if found is None:
            return None
        ms = {name: tuple(map(tuple, of_ranks)) for name, of_ranks in found.pop("ms").items()}
        return cls(ms=ms, **found)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @property
    def ranks(self) -> int:
        """How many took part."""
        return len(self.ms[FULL])

    @cached_property
    def full_ms(self) -> float:
        """The median step as it is trained, of the slowest rank."""
        return statistics.median(self._slowest(FULL))

    def step_ms(self, variant: str, rank: int | None = None) -> float | None:
        """The step of a variant, comparable with full_ms; of one rank, or the slowest. None where it wasn't timed."""
        if variant not in self.ms:
            return None
        times = self._slowest(variant) if rank is None else self.ms[variant][rank]
        pairs = zip(times, self._slowest(FULL), strict=True)
        return self.full_ms * math.exp(statistics.median(math.log(mine / full) for mine, full in pairs))

    def saved_ms(self, variant: str) -> float:
        """What the variant leaves out costs, beside the step on cached batches; 0 where it wasn't timed."""
        step, cached = self.step_ms(variant), self.step_ms(CACHED)
        return max(0.0, cached - step) if step is not None and cached is not None else 0.0

    @property
    def waited_ms(self) -> float:
        """What the others wait for the slowest rank: its own step without exchange, less the median of theirs."""
        own = [self.step_ms(NO_EXCHANGE, rank) or 0.0 for rank in range(self.ranks)]
        slowest = own.index(max(own))
        others = own[:slowest] + own[slowest + 1:]
        return max(own) - statistics.median(others) if others and NO_EXCHANGE in self.ms else 0.0

    @property
    def late_rank(self) -> int | None:
        """The rank whose own step is the longest; None for a rank alone."""
        if self.ranks < 2 or NO_EXCHANGE not in self.ms:
            return None
        return max(range(self.ranks), key=lambda rank: self.step_ms(NO_EXCHANGE, rank) or 0.0)

    @property
    def scatter(self) -> float:
        """How much neighbouring full steps differ, as a share: the median, below which a saving is no finding."""
        times = self._slowest(FULL)
        return statistics.median(abs(math.log(after / before)) for before, after in itertools.pairwise(times))

    @property
    def pace(self) -> Pace | None:
        """The step over its micro-batch, with the host's floor; None where fewer than three sizes were timed."""
        sizes = {ONE: 1, HALF: self.micro // 2, CACHED: self.micro}
        points = {size: ms for name, size in sizes.items() if (ms := self.step_ms(name)) is not None}
        return pace(points) if len(points) == len(sizes) else None

    def head(self) -> str:
        """What was measured, in a line; with the host's floor where three micro-batches were timed."""
        told = f"; {self.pace.sentence()}" if self.pace else ""
        return (f"{self.name} on {self.hardware}, {self.ranks} rank(s) x micro {self.micro} x accumulate "
                f"{self.accumulate}: {self.steps} steady steps of each variant, neighbouring blocks differ by "
                f"{100 * self.scatter:.0f} %{told}")

    def rows(self) -> list[dict[str, Any]]:
        """A row a variant: its step, and what it saves of the full one."""
        return [{"step": name, "ms": round(ms, 2), "of the full step [%]": round(100 * ms / self.full_ms, 1),
                 "what it is": MEANING[name]} for name in self.ms if (ms := self.step_ms(name)) is not None]

    def _slowest(self, variant: str) -> Sequence[float]:
        return [max(block) for block in zip(*self.ms[variant], strict=True)]
