"""Models of a step that can be run again with less of one cause; ceilings are read off them.

All answer one question: how long is the step when of each cause a given share is left? What they are made from differs:
a trace's work and edges (trace.replay), a CPU trace's main thread, or an ablation's measured times. None gets longer
when a cause gets smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lfhelpers.diagnose.ablation import ANSWERED, CACHED, NO_EXCHANGE, NO_UPDATE, Ablation
from lfhelpers.diagnose.trace.partition import Partition
from lfhelpers.diagnose.trace.processor import HostPartition
from lfhelpers.diagnose.trace.read import OPERATOR
from lfhelpers.diagnose.trace.replay import Replay
from lfhelpers.diagnose.trace.series import find
from lfhelpers.measure import intervals

Keep = Mapping[str, float]
"""Shares (0..1) of causes that are left; what is not named stays whole."""
REPLAY_ERROR = 0.1
"""By which share the unchanged replay may miss the trace."""


class Timeline(Protocol):
    """A step that can be run again."""

    @property
    def base_ms(self) -> float:
        """The step as it is."""
        ...

    @property
    def causes(self) -> tuple[str, ...]:
        """What `ms` knows."""
        ...

    @property
    def realistic(self) -> Keep:
        """What of a cause stays whatever one does, where that is known."""
        ...

    def ms(self, keep: Keep) -> float:
        """The step when of each cause this share is left; never longer than base_ms."""
        ...


@dataclass(frozen=True)
class Serial:
    """A step whose causes follow each other: each is gone with its own milliseconds."""

    base_ms: float
    parts: Mapping[str, float]
    realistic: Keep = field(default_factory=dict)

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(self.parts)

    def ms(self, keep: Keep) -> float:
        """The base less what is gone of each part."""
        gone = sum((1 - keep.get(cause, 1.0)) * spent for cause, spent in self.parts.items())
        return max(self.base_ms - gone, 0.0)


@dataclass(frozen=True)
class Ablated:
    """A step by what was measured without each part, and for what can't be taken away by a trace of its own.

    The loader runs beside the step as far as it was seen to: with `overlap` 1 the step is as long as the longer of the
    two, with 0 as both together. `inner` divides the step on cached batches; None where nothing was traced.
    """

    base_ms: float
    load_ms: float
    main_ms: float
    overlap: float
    parts: Mapping[str, float]
    inner: Timeline | None
    realistic: Keep

    @property
    def causes(self) -> tuple[str, ...]:
        inside = self.inner.causes if self.inner else ()
        return tuple(dict.fromkeys(["data", *self.parts, *inside]))

    def ms(self, keep: Keep) -> float:
        """The loader and the rest of the step beside each other."""
        gone = sum((1 - keep.get(cause, 1.0)) * spent for cause, spent in self.parts.items())
        if self.inner is not None:
            rest = {cause: share for cause, share in keep.items() if cause != "data" and cause not in self.parts}
            gone += self.main_ms * (1 - self.inner.ms(rest) / self.inner.base_ms)
        main, load = max(self.main_ms - gone, 0.0), self.load_ms * keep.get("data", 1.0)
        return min(self.base_ms, beside(main, load, self.overlap))


def beside(one: float, other: float, overlap: float) -> float:
    """How long two things take of which `overlap` (0..1) of the shorter one lies beside the longer one."""
    return one + other - overlap * min(one, other)


def of_trace(found: Partition | HostPartition, late_ms: float = 0.0, observer_us: float = 0.0) -> Timeline | None:
    """The timeline of a trace; None where it holds too little to be run again.

    late_ms: what other ranks wait for this one in a step. observer_us: what the profiler costs an operator of the host,
    which is taken off.
    """
    if isinstance(found, HostPartition):
        return _of_host(found, late_ms, observer_us)
    replay = Replay.of(found, observer_us)
    if replay is None or abs(replay.error) > REPLAY_ERROR:
        return None
    return Late(replay, late_ms) if late_ms else replay


@dataclass(frozen=True)
class Late:
    """A late rank's timeline, in which `late_ms` are what it does beyond the others, whatever that is."""

    inner: Timeline
    late_ms: float

    @property
    def base_ms(self) -> float:
        return self.inner.base_ms

    @property
    def causes(self) -> tuple[str, ...]:
        return (*self.inner.causes, "late rank")

    @property
    def realistic(self) -> Keep:
        return self.inner.realistic

    def ms(self, keep: Keep) -> float:
        """As if what makes the rank late were work of no other cause."""
        return max(self.inner.ms(keep) - (1 - keep.get("late rank", 1.0)) * self.late_ms, 0.0)


def of_ablation(found: Ablation, inner: Timeline | None = None) -> Ablated:
    """The timeline of an ablation, with a trace's for what it leaves open."""
    cached = min(found.step_ms(CACHED) or found.full_ms, found.full_ms)
    parts = {"optimizer": found.saved_ms(NO_UPDATE)} if NO_UPDATE in found.ms else {}
    if NO_EXCHANGE in found.ms:
        parts |= {"communication": found.saved_ms(NO_EXCHANGE), "late rank": found.waited_ms}
    if ANSWERED in found.ms:
        # What stands between reads in series exists for them, which the trace knows; that they wait, the ablation.
        seen = cached * (1 - inner.ms({"synchronisation": 0.0}) / inner.base_ms) if inner else 0.0
        parts["synchronisation"] = max(found.saved_ms(ANSWERED), seen)
    load, cached, overlap = _beside(found.load_ms * found.accumulate, cached, found.full_ms)
    return Ablated(found.full_ms, load, cached, overlap, parts, inner, _realistic(found, parts, load))


def _beside(load: float, cached: float, full: float) -> tuple[float, float, float]:
    """(loader, rest, overlap) that give the full step: together they take no longer than both, nor less than one."""
    if full >= load + cached:  # side by side the loader is slower than alone, or copies add to it
        return full - cached, cached, 0.0
    if full <= max(load, cached):
        return min(load, full), min(cached, full), 1.0
    return load, cached, (load + cached - full) / min(load, cached)


def _realistic(found: Ablation, parts: Mapping[str, float], load: float) -> dict[str, float]:
    """A loader can't beat its CPU time on this machine's cores, nor an update a fused one's."""
    cpu = found.load_cpu_ms * found.accumulate + (found.step_cpu_ms if found.device == "cpu" else 0.0)
    kept = {"data": min(1.0, cpu / found.cores / load) if load else 1.0}
    update = parts.get("optimizer", 0.0)
    if update:
        kept["optimizer"] = 1.0 if found.fused_ms is None else min(1.0, found.fused_ms / update)
    return kept


def _of_host(found: HostPartition, late_ms: float, observer_us: float) -> Serial:
    """The main thread's parts in the mean step, and the habits of series inside forward."""
    series = find(found.trace, found.main)
    ms = {part: spent / found.windows / 1e6 for part, spent in found.parts.items()}
    events = operators(found) / found.windows

    def clean(times: intervals.Set, count: int) -> float:
        spent = intervals.total(intervals.intersect(times, found.window)) / found.windows / 1e6
        return max(0.0, spent - observer_us * count / found.windows / 1e3)

    base = sum(ms.values())
    parts = {"data": ms["data"], "communication": ms["exposed communication"], "optimizer": ms["optimizer"],
             "python": ms["python"], "loops": clean(series.loops, series.loop_events),
             "synchronisation": clean(series.reads, series.read_events)}
    parts["python"] = max(0.0, parts["python"] - _python_in(found, intervals.joined([series.loops, series.reads])))
    if late_ms:
        parts["late rank"] = late_ms
    return Serial(max(base - observer_us * events / 1e3, base / 2), parts)


def operators(found: Partition | HostPartition) -> int:
    """Events of operators, nested ones too, of the main thread in the steps."""
    trace = found.trace
    main, window = (found.main, found.window) if isinstance(found, HostPartition) else \
        (found.host.main, np.array([found.window]))
    rows = np.flatnonzero((trace.kind == OPERATOR) & (trace.lane == main))
    return int(intervals.within(window, trace.start[rows]).sum())


def _python_in(found: HostPartition, times: intervals.Set) -> float:
    """Milliseconds of a step's Python that lie inside of `times`: they count there."""
    idle = intervals.subtract(intervals.intersect(times, found.window), found.busy)
    return intervals.total(idle) / found.windows / 1e6
