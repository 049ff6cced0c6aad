"""How full a loader's queues are, how long its consumer starves, and which of its stages holds the others up.

A stage's time is busy, blocked in (it waits for what comes before it) or blocked out (it waits for room behind it).
Starvation is what the consumer pays: the share of its time that it waits for a batch that isn't there. Utilisation of
the GPU would not show it, and a queue's mean depth shows it badly: a queue is empty or full most of the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import numpy as np

T = TypeVar("T")
Kind = Literal["busy", "blocked_in", "blocked_out"]
KEPT = 10_000  # latest batches, of which percentiles and series are made
FED = 5.0  # percent of time starved, the copy of each batch included, up to which the consumer is the bottleneck


class Meter:
    """Filled by one consumer thread (`got`) and by one thread a stage (`spent`, `timed`)."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, **lanes: int) -> None:
        """clock: seconds; lanes: how many work side by side in a stage, one where it isn't named."""
        self._clock, self._lanes = clock, lanes
        self._stages: dict[str, dict[Kind, float]] = {}
        self._rows: deque[tuple[float, float, dict[str, int]]] = deque(maxlen=KEPT)
        self._first: float | None = None
        self._last = self._starved = 0.0
        self._batches = 0

    @contextmanager
    def timed(self, stage: str, kind: Kind) -> Iterator[None]:
        """The block's time is the stage's, of this kind."""
        began = self._clock()
        yield
        self.spent(stage, kind, self._clock() - began)

    def spent(self, stage: str, kind: Kind, seconds: float) -> None:
        """Time of a stage that was measured elsewhere. Stages are told in the order in which they came first."""
        times = self._stages.setdefault(stage, {"busy": 0.0, "blocked_in": 0.0, "blocked_out": 0.0})
        times[kind] += seconds

    def got(self, waited: float, depths: Mapping[str, int]) -> None:
        """The consumer has a batch, for which it waited so many seconds; depths: the queues as it came to ask."""
        now = self._clock()
        if self._first is None:  # that wait is the start of the pipeline: no sign of what follows
            self._first = now
        else:
            self._starved += waited
        self._last = now
        self._batches += 1
        self._rows.append((now - self._first, waited, dict(depths)))

    def series(self) -> dict[str, list[float]]:
        """For a plot over time, of the latest batches: "at" in seconds, "wait_ms", and each queue's depth."""
        names = list(self._rows[-1][2]) if self._rows else []
        return {"at": [at for at, _, _ in self._rows], "wait_ms": [1e3 * waited for _, waited, _ in self._rows],
                **{name: [float(depths[name]) for _, _, depths in self._rows] for name in names}}

    def stats(self) -> dict[str, Any]:
        """Starvation from the first batch on, waits and depths as percentiles, stages, and the bottleneck's name."""
        series = self.series()
        depths = {name: _percentiles(series[name], (5, 50)) for name in series if name not in ("at", "wait_ms")}
        return {"batches": self._batches, "starved_s": self._starved, "starved_percent": self.starved(),
                "wait_ms": _percentiles(series["wait_ms"][1:], (50, 95)), "depth": depths, "stages": self._shares(),
                "bottleneck": self.bottleneck()}

    def starved(self) -> float:
        """Percent of the consumer's time, from its first batch to its latest, in which it waited."""
        wall = self._last - self._first if self._first is not None else 0.0
        return 100 * self._starved / wall if wall > 0 else 0.0

    def bottleneck(self) -> str:
        """"consumer" where it hardly starves, else the stage that works longest, its lanes side by side."""
        if self.starved() < FED or not self._stages:
            return "consumer"
        return max(self._stages, key=lambda stage: self._stages[stage]["busy"] / self._lanes.get(stage, 1))

    def _shares(self) -> dict[str, dict[str, float]]:
        return {stage: {f"{kind}_percent": 100 * seconds / max(sum(times.values()), 1e-9)
                        for kind, seconds in times.items()} | {"busy_s": times["busy"]}
                for stage, times in list(self._stages.items())}


def metered(batches: Iterable[T], meter: Meter) -> Iterator[T]:
    """The same batches; `meter` is told how long each took to come. For engines that have no meter of their own."""
    each = iter(batches)
    while True:
        asked = time.perf_counter()
        try:
            batch = next(each)
        except StopIteration:
            return
        meter.got(time.perf_counter() - asked, {})
        yield batch


def _percentiles(values: list[float], which: tuple[int, ...]) -> dict[str, float]:
    return {f"p{percent}": float(np.percentile(values, percent)) if values else 0.0 for percent in which}
