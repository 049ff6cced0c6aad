"""Steps, found on the GPU: a step begins with the first work that was launched in it, and ends where the next begins.

The host runs ahead, so its own bounds of a step say little about the GPU. Windows from first work to first work follow
each other without a gap, which no window from first to last kernel does; the price is that the last step has no end and
is left out. Without the profiler's marks, the optimizer's calls are taken, then a period in the kernels' names; failing
these, the whole span is one window, and the report says so.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.launches import Launches
from lfhelpers.diagnose.trace.read import ANNOTATION, GPU_ANNOTATION, KERNEL, OPERATOR, Trace

MARK = re.compile(r"^ProfilerStep\s*#?\s*\d+$")
OPTIMIZER_CALLS = (re.compile(r"^Optimizer\.step#"), re.compile(r"^Optimizer\.zero_grad#"))
STUB = 0.02
"""A mark without GPU work, shorter than this share of the longest, is what a recording leaves at its end."""
PERIODS = 3
ALIKE = 0.95
LARGEST_PERIOD_SEARCH = 200


@dataclass(frozen=True)
class Steps:
    """`bounds`: ns [m+1], the ends of m windows that follow each other; `host_ns`: lengths of the host's steps."""

    source: str
    names: tuple[str, ...]
    host: NDArray[np.int64]
    """The host's own bounds, ns [k, 2], of all steps that the GPU worked for; empty where there are no marks."""
    bounds: NDArray[np.int64]
    notes: tuple[str, ...]

    @property
    def found(self) -> int:
        """Complete steps that the trace holds; the last has no end on the GPU, so there may be one window less."""
        return len(self.host) or (len(self.bounds) - 1 if self.source in ("kernels", "ProfilerStep") else 0)

    @property
    def window_ms(self) -> list[float]:
        """Milliseconds of each window."""
        return [float(length) / 1e6 for length in np.diff(self.bounds)]

    @property
    def host_ms(self) -> list[float]:
        """Milliseconds of each of the host's steps."""
        return [float(end - start) / 1e6 for start, end in self.host]


def marks(trace: Trace) -> NDArray[np.int64]:
    """The rows of the profiler's steps on the host, in order; of two with one name the longer is meant.

    The GPU's own rows of the same name are taken only where the host has none: they span kernels alone.
    """
    named = trace.named(MARK)
    for kinds in ((ANNOTATION, OPERATOR), (GPU_ANNOTATION,)):
        rows = np.flatnonzero(named & np.isin(trace.kind, kinds))
        longest: dict[int, int] = {}
        for row in rows[np.argsort(trace.end[rows] - trace.start[rows], kind="stable")]:
            longest[int(trace.name[row])] = int(row)
        if longest:
            return np.array(sorted(longest.values()))
    return np.zeros(0, np.int64)


def on_host(trace: Trace) -> tuple[str, list[str], NDArray[np.int64]]:
    """(source, names, ns [k, 2]) of the host's steps: the profiler's marks, or else the optimizer's calls; or none."""
    rows = marks(trace)
    if len(rows):
        spans = np.column_stack([trace.start[rows], trace.end[rows]])
        return "ProfilerStep", [trace.names[name] for name in trace.name[rows]], spans
    return "optimizer", *_between_calls(trace)


def find(trace: Trace, work: NDArray[np.int64], launched: Launches) -> Steps:
    """The steps of a trace with GPU work; `work` are its rows and `launched` their launches."""
    source, names, host = on_host(trace)
    if len(host):
        return _on_gpu(trace, work, launched, source, names, host)
    bounds = _periods(trace, work)
    if len(bounds):
        note = "no step is marked: steps are told by the kernels' names, which repeat"
        return Steps("kernels", tuple(f"period {index}" for index in range(len(bounds) - 1)), host, bounds, (note,))
    whole = np.array([trace.start[work].min(), trace.end[work].max()])
    return Steps("whole span", ("whole span",), host, whole,
                 ("no step is marked and none can be told: the whole span of the GPU's work is reported as one",))


def _on_gpu(trace: Trace, work: NDArray[np.int64], launched: Launches, source: str, names: list[str],
            host: NDArray[np.int64]) -> Steps:
    """Windows from first work to first work; one step alone is taken from its host's beginning to the GPU's end."""
    blind = not launched.known.any()  # then when it ran must do
    when, usable = (trace.start[work], np.ones(len(work), bool)) if blind else (launched.time, launched.known)
    place = np.searchsorted(host[:, 0], when, side="right") - 1
    inside = usable & (place >= 0) & (when < host[place.clip(min=0), 1])
    first = np.full(len(host), np.iinfo(np.int64).max)
    np.minimum.at(first, place[inside], trace.start[work[inside]])
    worked = np.isin(np.arange(len(host)), place[inside])
    notes = ["the trace holds no launches: steps are told by the host's times alone"] if blind else []
    notes += _left_out(names, host, worked)
    later = np.r_[True, np.diff(np.maximum.accumulate(np.where(worked, first, -1))) > 0]
    kept = [name for name, good in zip(names, worked & later, strict=True) if good]
    first, host = first[worked & later], host[worked & later]
    if len(first) >= 2:
        return Steps(source, tuple(kept[:-1]), host, first, tuple(notes))
    if len(first) == 1:
        bounds = np.array([min(host[0, 0], first[0]), max(host[0, 1], trace.end[work[inside]].max())])
        notes.append("one step alone: its window begins with the host's step, not with the GPU's first work")
        return Steps(source, tuple(kept), host, bounds, tuple(notes))
    notes.append("no launch falls into a marked step: the whole span of the GPU's work is reported as one")
    whole = np.array([trace.start[work].min(), trace.end[work].max()])
    return Steps("whole span", ("whole span",), host[:0], whole, tuple(notes))


def _left_out(names: list[str], host: NDArray[np.int64], worked: NDArray[np.bool_]) -> list[str]:
    lengths = host[:, 1] - host[:, 0]
    notes = []
    for name, length, good in zip(names, lengths, worked, strict=True):
        if not good:
            stub = "a stub at the end of the recording" if length < STUB * lengths.max() else \
                "none of the recorded GPU work was launched in it"
            notes.append(f"{name} ({length / 1e3:.0f} us) is left out as incomplete: {stub}")
    return notes


def _between_calls(trace: Trace) -> tuple[list[str], NDArray[np.int64]]:
    """Steps from the end of one call of the optimizer to the end of the next, of the name that is called most."""
    host = np.isin(trace.kind, (ANNOTATION, OPERATOR))
    for pattern in OPTIMIZER_CALLS:
        rows = np.flatnonzero(host & trace.named(pattern))
        if len(rows) > 1:
            name = Counter(trace.name[rows].tolist()).most_common(1)[0][0]
            ends = np.sort(trace.end[rows[trace.name[rows] == name]])
            if len(ends) > 1:
                return [f"step {index}" for index in range(len(ends) - 1)], np.column_stack([ends[:-1], ends[1:]])
    return [], np.zeros((0, 2), np.int64)


def _periods(trace: Trace, work: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the kernels' names repeat at least PERIODS times: the start of each period, ns; else empty."""
    kernels = work[trace.kind[work] == KERNEL]
    names = trace.name[kernels]
    counts = Counter(names.tolist())
    rare = sorted((count, name) for name, count in counts.items() if count > PERIODS)
    for _, name in rare[:LARGEST_PERIOD_SEARCH]:
        places = np.flatnonzero(names == name)
        for period in sorted(set(np.diff(places).tolist())):
            if period >= 2 and len(names) >= PERIODS * period and np.mean(names[period:] == names[:-period]) >= ALIKE:
                starts = np.arange(int(places[0]) % period, len(names), period)
                return trace.start[kernels[starts]]
    return np.zeros(0, np.int64)

