"""Two habits of Python code that cost a host's time, found in its operators: loops over single numbers, and reads.

A loop is a long run of small operators of few kinds, one after the other, that belong to no graph's backward and to no
optimizer. Reads in series are values taken to the host (`.item()`, `bool(tensor)`) with next to nothing in between:
what is in between then exists for the reads, as the sums of a guard do. Both are told by form alone, so a run of small
operators that is the model itself counts as a loop too: then a compiler is the remedy rather than a rewrite.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.classes import BACKWARD, OPTIMIZER, SYNC_OPERATOR, host_states
from lfhelpers.diagnose.trace.read import OPERATOR, Trace
from lfhelpers.measure import intervals
from lfhelpers.measure.intervals import EMPTY, Set

SMALL, INSIDE = 25_000, 2_000
"""ns: an operator whose median is longer, under a profiler, does real work. Single ones take longer on a busy host.

Each operator inside it may take so much more: to be called and recorded, as in an unbind, which is a view a row.
"""
PAUSE = 20_000_000
"""ns between two operators, at most, for both to be of one run: longer than a host's time slice."""
LOOP = 200
"""Operators in a row."""
KINDS, OF_KINDS, PART = 4, 0.9, 32
"""So many names make up so much of a loop, in each part of so many operators."""
READS = 8
"""Reads in a row."""
BETWEEN = 8
"""Outermost operators between two reads of one series, at most."""


@dataclass(frozen=True)
class Series:
    """When the main thread was in each habit, and how many operators, nested ones too, the profiler saw there."""

    loops: Set
    reads: Set
    loop_events: int
    read_events: int


def find(trace: Trace, main: int) -> Series:
    """The series of the thread `main`."""
    rows = np.flatnonzero((trace.kind == OPERATOR) & (trace.lane == main))
    if not len(rows):
        return Series(EMPTY, EMPTY, 0, 0)
    top = _outermost(trace, rows)
    states = host_states(trace)
    busy = intervals.joined([_union(trace, np.flatnonzero(states[state] & (trace.lane == main)))
                             for state in (BACKWARD, OPTIMIZER)])
    top = top[~intervals.within(busy, trace.start[top])]
    reads = _reads(trace, top)
    rest = top[~intervals.within(reads, trace.start[top])]
    starts = trace.start[rows]
    loops = _loops(trace, rest, starts)
    return Series(loops, reads, int(intervals.within(loops, starts).sum()), int(intervals.within(reads, starts).sum()))


def _loops(trace: Trace, top: NDArray[np.int64], starts: NDArray[np.int64]) -> Set:
    """Of the outermost operators `top`; `starts` of all operators, nested ones too, in order."""
    inside = np.searchsorted(starts, trace.end[top]) - np.searchsorted(starts, trace.start[top], "right")
    length = trace.end[top] - trace.start[top] - INSIDE * inside
    names, place = np.unique(trace.name[top], return_inverse=True)
    small = np.array([np.median(length[place == one]) < SMALL for one in range(len(names))], bool)[place]
    found = []
    for run in _runs(top, small & _close(trace, top)):
        parts = np.array_split(run, max(1, len(run) // PART))
        alike = np.array([_of_few_kinds(trace, part) for part in parts])
        for start, end in _stretches_of(alike):
            loop = np.concatenate(parts[start:end])
            if len(loop) >= LOOP:
                found.append((trace.start[loop[0]], trace.end[loop[-1]]))
    return _set(found)


def _of_few_kinds(trace: Trace, part: NDArray[np.int64]) -> bool:
    """A model's own small operators are of many kinds within any few dozen; a loop's aren't."""
    _, counts = np.unique(trace.name[part], return_counts=True)
    return bool(np.sort(counts)[-KINDS:].sum() >= OF_KINDS * len(part))


def _stretches_of(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[start, end) of each run of True."""
    edges = np.flatnonzero(np.diff(np.r_[False, flags, False].astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _reads(trace: Trace, top: NDArray[np.int64]) -> Set:
    """From the operator behind the read before the first to the last read: the first one's own share is reckoned."""
    reading = np.array([SYNC_OPERATOR.search(trace.names[name]) is not None or trace.names[name] == "aten::is_nonzero"
                        for name in trace.name[top]], bool)
    places = np.flatnonzero(reading)
    found = []
    for run in np.split(places, np.flatnonzero(np.diff(places) > BETWEEN + 1) + 1) if len(places) else []:
        if len(run) >= READS:
            start, end = trace.end[top[run[0]]], trace.end[top[run[-1]]]
            found.append((start - (end - start) // (len(run) - 1), end))
    return _set(found)


def _outermost(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows that no other of them holds; rows are in order of start, and the longest comes first."""
    rows = rows[np.lexsort((-trace.end[rows], trace.start[rows]))]
    before = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(trace.end[rows])[:-1]]
    return rows[trace.start[rows] >= before]


def _close(trace: Trace, top: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each operator comes soon after the one before."""
    return np.r_[True, trace.start[top][1:] - trace.end[top][:-1] <= PAUSE] if len(top) else np.zeros(0, bool)


def _runs(top: NDArray[np.int64], kept: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Stretches of operators of which all are kept."""
    return [part[1:] if not kept[start] else part for start, part in _stretches(top, kept) if len(part) > 1]


def _stretches(top: NDArray[np.int64], kept: NDArray[np.bool_]) -> list[tuple[int, NDArray[np.int64]]]:
    cuts = np.flatnonzero(~kept)
    edges = [0, *cuts.tolist(), len(top)]
    return [(start, top[start:end]) for start, end in itertools.pairwise(edges) if end > start]


def _set(found: list[tuple[int, int]]) -> Set:
    edges = np.array(found, np.int64).reshape(-1, 2)
    return intervals.union(edges[:, 0], edges[:, 1])


def _union(trace: Trace, rows: NDArray[np.int64]) -> Set:
    return intervals.union(trace.start[rows], trace.end[rows])
