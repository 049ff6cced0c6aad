"""What each piece of a GPU's work waited for, and what the host did between its launches: columns for a replay.

All of it is read off one trace. A piece begins when its launch, the piece before it on its stream and, where none of
these explains its beginning, a piece of another stream have all come: the one that came last is the edge that was seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.classes import COMMUNICATION, COPIES, DATA, SYNC
from lfhelpers.diagnose.trace.partition import DEVICE_GAP, Partition
from lfhelpers.diagnose.trace.read import OPERATOR
from lfhelpers.diagnose.trace.series import Series, find
from lfhelpers.measure import intervals, kernels

CAUSES = ("data", "synchronisation", "host", "loops", "communication", "copies", "pointwise", "optimizer")
"""What can shrink: waits for data; waits for the GPU and reads in series; launching; loops over numbers; exchange,
copies, uncompiled pointwise kernels and update kernels."""
POINTWISE = ("pointwise, uncompiled", "gradient norm")
ARRIVING = 0.03
"""Share of the step that a host waits for data, from which on the loader is taken for the slower side."""
TOLERANCE = 5_000
"""ns by which clocks of host and GPU may disagree."""
NEAR = 64
"""Pieces that are looked through for one that ended last."""
FAR = np.iinfo(np.int64).min // 4


def launch_of(found: Partition) -> NDArray[np.int64]:
    """When each piece was launched; what has no launch in the trace counts as launched when it began."""
    return np.where(found.launched.known, np.minimum(found.launched.time, found.trace.start[found.rows]),
                    found.trace.start[found.rows])


def first_at(found: Partition, order: NDArray[np.int64], bound: int) -> int:
    """Place, in the order of launching, of the piece that begins a step."""
    begin = found.trace.start[found.rows][order]
    at = np.flatnonzero(begin >= bound)
    return int(at[0]) if len(at) else len(order)


def columns(found: Partition, order: NDArray[np.int64]) -> dict[str, Any]:
    """Columns [n] in the order of launching."""
    trace, rows = found.trace, found.rows[order]
    launch = launch_of(found)[order]
    begun, ended, stream = trace.start[rows], trace.end[rows], trace.lane[rows]
    series = find(trace, found.host.main)
    groups = [kernels.group(name) for name in trace.names]
    titles = np.array([groups[name] for name in trace.name[rows]])
    classes = found.classes[order]
    shrinks = np.select(
        [classes == COMMUNICATION, classes == COPIES, intervals.within(series.loops, launch),
         intervals.within(series.reads, launch), titles == "optimizer", np.isin(titles, POINTWISE)],
        [CAUSES.index(cause) for cause in
         ("communication", "copies", "loops", "synchronisation", "optimizer", "pointwise")], -1)
    edges = _edges(launch, begun, ended, stream)
    return {"shrinks": shrinks, "length": (ended - begun).astype(float), "stream": stream, **edges,
            **_host(found, series, launch, ended, stream)}


def _host(found: Partition, series: Series, launch: NDArray[np.int64], ended: NDArray[np.int64],
          stream: NDArray[np.int64]) -> dict[str, Any]:
    """What the host did between each launch and the one before: work, waits for data, and what it waited for."""
    before = np.r_[launch[:1], launch[:-1]]

    def spent(times: intervals.Set, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        return intervals.before(times, end) - intervals.before(times, start)

    data, sync = found.host.blocked[DATA], found.host.blocked[SYNC]
    in_data, in_sync = spent(data, before, launch), spent(sync, before, launch)
    # Where the gap's last wait for the GPU ended, or the launch before if there was none.
    place = np.searchsorted(sync[:, 1], launch, side="right") - 1 if len(sync) else np.full(len(launch), -1)
    sync_end = np.where((place >= 0) & (in_sync > 0), sync[place.clip(min=0), 1] if len(sync) else 0, before)
    sync_end = sync_end.clip(before, launch)
    work = intervals.joined([data, sync])
    looping = intervals.subtract(intervals.joined([series.loops, series.reads]), work)
    loops = intervals.subtract(series.loops, work)
    early, late = (end - start - spent(work, start, end) - spent(looping, start, end)
                   for start, end in ((before, sync_end), (sync_end, launch)))
    target, beside, rest = _targets(launch, ended, stream, sync_end, in_sync)
    operators = found.trace.start[found.trace.rows(OPERATOR)]
    busy = intervals.within(data, operators).sum() > 20 * len(data)
    bound = not busy and intervals.total(intervals.clip(data, *found.window)) > ARRIVING * found.length
    in_loops = spent(loops, before, launch)
    return {"early": early, "late": late, "target": target, "beside": beside, "rest": rest, "loops": in_loops,
            "reads": spent(looping, before, launch) - in_loops,
            "events": np.searchsorted(operators, launch) - np.searchsorted(operators, before),
            "data": np.zeros_like(in_data) if bound else in_data,
            "arrives": np.where(in_data > 0, sync_end - late, FAR) if bound else np.full(len(launch), FAR)}


def _targets(launch: NDArray[np.int64], ended: NDArray[np.int64], stream: NDArray[np.int64],
             sync_end: NDArray[np.int64], in_sync: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Of each gap's wait: the piece that ended last before it did, and the last one of another stream, as offsets (FAR:
    no wait, or none there); and what the wait took beyond.

    A wait can only be for what was launched before it. Which streams it was for isn't known, so it is for both.
    """
    order = np.argsort(ended, kind="stable")
    target, beside, rest = np.full(len(launch), FAR), np.full(len(launch), FAR), np.zeros(len(launch), np.int64)
    for place in np.flatnonzero(in_sync > 0):
        at = int(np.searchsorted(ended[order], sync_end[place] + TOLERANCE, side="right"))
        earlier = order[max(0, at - NEAR):at][::-1]
        earlier = earlier[earlier < place]
        last = earlier[0] if len(earlier) else -1
        others = earlier[stream[earlier] != stream[last]]
        begun = sync_end[place] - in_sync[place]
        target[place], beside[place] = last - place, (others[0] if len(others) else last) - place
        rest[place] = max(0, sync_end[place] - max(ended[last] if last >= 0 else begun, begun))
    return target, beside, rest


def _edges(launch: NDArray[np.int64], begun: NDArray[np.int64], ended: NDArray[np.int64],
           stream: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """What each piece waited for: its launch, its stream or another's work, with what passed in between."""
    count = len(launch)
    last: dict[int, int] = {}
    previous = np.full(count, FAR)
    for place, lane in enumerate(stream.tolist()):
        previous[place] = last.get(lane, FAR)
        last[lane] = int(ended[place])
    order = np.argsort(ended, kind="stable")
    sorted_ends = ended[order]
    lag = begun - launch
    typical = int(np.percentile(lag[(launch >= previous) & (lag >= 0)], 10)) if (launch >= previous).any() else 0
    typical = min(typical, 20_000)
    launch_gap, stream_gap = np.minimum(lag, typical), np.zeros(count, np.int64)
    other, other_gap = np.full(count, FAR), np.zeros(count, np.int64)
    latest = np.maximum(launch, previous)
    by_launch, short = launch >= previous, begun - latest < DEVICE_GAP
    candidates = np.searchsorted(sorted_ends, begun + 1, side="right") - 1
    whose, lanes = order.tolist(), stream.tolist()
    for place in np.flatnonzero(~short).tolist():
        at = first = int(candidates[place])
        while at >= 0 and (whose[at] >= place or lanes[whose[at]] == lanes[place]):
            at = at - 1 if first - at < NEAR else -1
        if at >= 0 and ended[whose[at]] > latest[place]:
            other[place], other_gap[place] = whose[at] - place, begun[place] - ended[whose[at]]
    alone = other == FAR
    launch_gap = np.where(alone & by_launch, lag, launch_gap)
    stream_gap = np.where(alone & ~by_launch, np.maximum(0, begun - previous), stream_gap)
    return {"launch_gap": launch_gap, "stream_gap": stream_gap, "other": other, "other_gap": other_gap}
