"""Sums over a whole trace, whatever its steps: span, busy time, communication, copies, and how sure the ties are.

A report by steps leaves out what lies before the first and after the last of them; these figures don't, so they can be
checked with any other tool.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from lfhelpers.diagnose.trace.classes import COMMUNICATION, COMPUTE, COPIES, DATA, host_states
from lfhelpers.diagnose.trace.partition import Partition
from lfhelpers.diagnose.trace.processor import HostPartition
from lfhelpers.diagnose.trace.read import KERNEL, OVERHEAD, Trace
from lfhelpers.measure import intervals

LEAST_KNOWN = 95.0
MOST_SKEWED = 1.0
MOST_VARIATION = 0.2


def whole(found: Partition) -> dict[str, Any]:
    """Milliseconds over the whole trace of a GPU: {events, span, busy, ...}."""
    trace, rows = found.trace, found.rows
    compute, exchange, copies = (found.of_class(kind) for kind in (COMPUTE, COMMUNICATION, COPIES))
    work = intervals.joined([compute, exchange])
    busy = intervals.joined([work, copies])
    span = int(trace.end[rows].max() - trace.start[rows].min())
    times = {
        "span_ms": span, "sum_ms": int((trace.end[rows] - trace.start[rows]).sum()), "busy_ms": intervals.total(busy),
        "kernels_ms": intervals.total(work), "compute_ms": intervals.total(compute),
        "communication_ms": intervals.total(exchange),
        "exposed_communication_ms": intervals.total(intervals.subtract(exchange, compute)),
        "copies_ms": intervals.total(copies), "exposed_copies_ms": intervals.total(intervals.subtract(copies, work)),
        "idle_ms": span - intervals.total(busy),
    }
    return {"gpu_events": len(rows), **{name: nanoseconds / 1e6 for name, nanoseconds in times.items()},
            "busy_percent": 100 * times["busy_ms"] / max(span, 1), "loader_percent": loader_percent(found)}


def whole_of_host(found: HostPartition) -> dict[str, Any]:
    """The same for a trace without GPU work, over its steps; what only a GPU has is None."""
    exchange = intervals.total(found.exchange)
    times = {"span_ms": found.length, "busy_ms": intervals.total(found.busy), "communication_ms": exchange,
             "exposed_communication_ms": found.parts["exposed communication"]}
    nothing = dict.fromkeys(("sum_ms", "kernels_ms", "compute_ms", "copies_ms", "exposed_copies_ms", "idle_ms",
                             "busy_percent"))
    return {"gpu_events": 0, **nothing, **{name: nanoseconds / 1e6 for name, nanoseconds in times.items()},
            "loader_percent": loader_percent(found)}


def loader_percent(found: Partition | HostPartition) -> float | None:
    """Percent of the host's steps that their thread spends in the loader, hidden or not; None without marked steps."""
    trace = found.trace
    main = found.host.main if isinstance(found, Partition) else found.main
    if not len(found.steps.host):
        return None
    rows = np.flatnonzero(host_states(trace)[DATA] & (trace.lane == main))
    steps = intervals.union(found.steps.host[:, 0], found.steps.host[:, 1])
    loader = intervals.intersect(intervals.union(trace.start[rows], trace.end[rows]), steps)
    return 100 * intervals.total(loader) / intervals.total(steps)


def confidence(found: Partition) -> tuple[dict[str, Any], list[str]]:
    """How far the causes can be trusted, and what limits them, as notes."""
    trace, launched = found.trace, found.launched
    known = 100 * float(launched.known.mean())
    late = launched.known & (trace.start[found.rows] < launched.time)
    skewed = 100 * float(late.mean())
    lengths = found.steps.window_ms
    variation = statistics.stdev(lengths) / statistics.fmean(lengths) if len(lengths) > 1 else None
    overhead = intervals.clip(_times(trace, OVERHEAD), *found.window)
    in_gaps = 100 * intervals.total(intervals.intersect(overhead, found.gaps.times)) / found.length
    notes = []
    if known < LEAST_KNOWN:
        notes.append(f"{100 - known:.1f} % of the GPU's work has no launch in the trace: it counts as work, and the "
                     "idle time before it is `unknown`")
    if skewed > MOST_SKEWED:
        notes.append(f"{skewed:.1f} % of the GPU's work begins before its launch: the clocks of host and GPU disagree, "
                     "and causes are less sure")
    if variation is not None and variation > MOST_VARIATION:
        notes.append(f"steps differ by {100 * variation:.0f} % (standard deviation over mean): see each of them")
    if in_gaps > MOST_SKEWED:
        notes.append(f"the profiler's own work falls into {in_gaps:.1f} % of the step while the GPU is idle")
    return {"launch_known_percent": known, "skewed_percent": skewed, "step_variation": variation,
            "profiler_overhead_percent": in_gaps}, notes


def unrecognised(found: Partition) -> list[str]:
    """A note where a job of several ranks seems to exchange nothing."""
    world = found.trace.world
    if world is None or world < 2 or (found.classes == COMMUNICATION).any():
        return []
    count = int((found.trace.kind[found.rows] == KERNEL).sum())
    return [f"the job has {world} ranks, but no communication kernels were recognised among {count:,} kernels: if "
            "there are any, they count as compute"]


def _times(trace: Trace, kind: int) -> intervals.Set:
    rows = trace.rows(kind)
    return intervals.union(trace.start[rows], trace.end[rows])
