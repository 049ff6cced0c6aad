"""Sets of times as arrays: int64 [n, 2] of disjoint [start, end) in ascending order, in nanoseconds.

Everything here is one sort and a few passes of numpy, so a million intervals take a second. Results are such sets too,
without empty or touching members: equal sets have equal arrays.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Set = NDArray[np.int64]
EMPTY: Set = np.zeros((0, 2), np.int64)


def union(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Set:
    """The times in which at least one of [start, end) runs; pieces that overlap or touch become one."""
    real = ends > starts
    starts, ends = starts[real], ends[real]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    fresh = np.flatnonzero(starts[1:] > ends[:-1]) + 1
    return np.column_stack([starts[np.r_[0, fresh]], ends[np.r_[fresh - 1, len(ends) - 1]]])


def joined(sets: Iterable[Set]) -> Set:
    """The union of sets."""
    all_of = np.concatenate([EMPTY, *sets])
    return union(all_of[:, 0], all_of[:, 1])


def total(times: Set) -> int:
    """Nanoseconds of a set."""
    return int((times[:, 1] - times[:, 0]).sum())


def clip(times: Set, start: int, end: int) -> Set:
    """What lies in [start, end)."""
    cut = times.clip(start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def subtract(a: Set, b: Set) -> Set:
    """The times of `a` that are not in `b`."""
    return _combined(a, b, keep_inside=False)


def intersect(a: Set, b: Set) -> Set:
    """The times that are in both."""
    return _combined(a, b, keep_inside=True)


def before(times: Set, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Nanoseconds of the set before each point [m]; a difference of two is what lies between the points."""
    if not len(times):
        return np.zeros(len(points), np.int64)
    sums = np.r_[0, np.cumsum(times[:, 1] - times[:, 0])]
    place = np.searchsorted(times[:, 0], points, side="right")
    last = (place - 1).clip(min=0)
    within = np.minimum(points, times[last, 1]) - times[last, 0]
    return np.where(place > 0, sums[last] + within, 0)


def within(times: Set, points: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each point [m] lies in the set."""
    if not len(times):
        return np.zeros(len(points), bool)
    place = np.searchsorted(times[:, 0], points, side="right") - 1
    return (place >= 0) & (points < times[place.clip(min=0), 1])


def _combined(a: Set, b: Set, keep_inside: bool) -> Set:
    """Cut at all ends, keep the pieces of `a` that are inside or outside of `b`, and join what touches."""
    points = np.sort(np.concatenate([a.ravel(), b.ravel()]))  # np.unique hashes, which takes ten times as long
    if len(points) < 2:
        return EMPTY
    points = points[np.r_[True, np.diff(points) > 0]]
    pieces = points[:-1]
    kept = within(a, pieces) & (within(b, pieces) == keep_inside)
    return union(pieces[kept], points[1:][kept])
