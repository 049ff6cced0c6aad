"""Where the GPU's time went: computation, exposed communication, exposed copies, and idle time by cause. Sums to 100 %.

Work is the union of intervals, so streams that overlap count once; communication counts as far as no computation covers
it, copies as far as neither does. A gap is explained by the work that ended it: if that was already launched, the GPU
waited for other work (dependency; below 5 us the device's own launch latency); if not, the host was late, and the gap
is split by what it was doing, up to the launch, and launch latency, from then on. Nothing is dropped: work whose launch
isn't in the trace stays work, and the gap before it is `unknown`.

A host that was held up (a synchronisation, a wait for data) while the GPU was still busy has lost its lead, and pays
with gaps later, in forward or wherever it happens to be. `after` holds how much of the host's gaps that explains: with
the wait gone, launches come earlier by its length, so gaps up to that length close. The parts stay what was observed;
the verdict adds `after` to its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.classes import (
    BACKWARD,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    DATA,
    OPTIMIZER,
    SYNC,
    gpu_classes,
    work_rows,
)
from lfhelpers.diagnose.trace.host import Host, observe
from lfhelpers.diagnose.trace.launches import Launches, launches
from lfhelpers.diagnose.trace.read import Trace
from lfhelpers.diagnose.trace.steps import Steps, find
from lfhelpers.measure import intervals
from lfhelpers.measure.intervals import Set

DEVICE_GAP = 5_000
"""ns: between queued kernels a GPU is idle up to so long by itself."""
CAUSES = ("data", "synchronisation", "forward host", "backward host", "optimizer host", "launch latency", "dependency",
          "unknown")
PARTS = ("compute", "exposed communication", "exposed copies", *CAUSES)
CAUSE_OF = {DATA: 0, SYNC: 1, BACKWARD: 3, OPTIMIZER: 4}
FORWARD, LATENCY, DEPENDENCY, UNKNOWN = 2, 5, 6, 7
HOST_CAUSES = (FORWARD, CAUSE_OF[BACKWARD], CAUSE_OF[OPTIMIZER], LATENCY)


@dataclass(frozen=True)
class Gaps:
    """Idle times of the GPU: ns [n, 2]; index among the work of what ended each (-1: nothing); ns by cause [n, 8]."""

    times: Set
    ended_by: NDArray[np.int64]
    causes: NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """One GPU's time between the first and the last bound of its steps, with all that a re-simulation needs.

    Arrays of work [n] are in order of start: rows of the trace, class, launch. `parts` are ns by PARTS and sum to the
    window; `after` are ns of host gaps by the wait that they follow.
    """

    trace: Trace
    steps: Steps
    host: Host
    rows: NDArray[np.int64]
    classes: NDArray[np.int64]
    launched: Launches
    gaps: Gaps
    parts: Mapping[str, int]
    after: Mapping[str, int]

    @property
    def window(self) -> tuple[int, int]:
        """Start and end, ns."""
        return int(self.steps.bounds[0]), int(self.steps.bounds[-1])

    @property
    def length(self) -> int:
        """Nanoseconds of the window."""
        return self.window[1] - self.window[0]

    @property
    def windows(self) -> int:
        """Steps in the window."""
        return len(self.steps.bounds) - 1

    def percent(self, part: str) -> float:
        """A part's share of the window."""
        return 100 * self.parts[part] / self.length

    def of_class(self, kind: int) -> Set:
        """When work of a class ran, over the whole trace."""
        rows = self.rows[self.classes == kind]
        return intervals.union(self.trace.start[rows], self.trace.end[rows])


def partition(trace: Trace) -> Partition | None:
    """The partition of a trace's GPU time; None where it holds no GPU work."""
    rows = work_rows(trace)
    if not len(rows):
        return None
    classes, launched = gpu_classes(trace)[rows], launches(trace, rows)
    steps = find(trace, rows, launched)
    window = int(steps.bounds[0]), int(steps.bounds[-1])
    compute, exchange, copies = (
        intervals.clip(intervals.union(trace.start[rows[classes == kind]], trace.end[rows[classes == kind]]), *window)
        for kind in (COMPUTE, COMMUNICATION, COPIES))
    exposed_exchange = intervals.subtract(exchange, compute)
    exposed_copies = intervals.subtract(copies, intervals.joined([compute, exchange]))
    busy = intervals.joined([compute, exchange, copies])
    idle = intervals.subtract(np.array([window]), busy)
    host = observe(trace)
    gaps = _explained(idle, trace, rows, launched, host)
    sums = gaps.causes.sum(axis=0)
    work = (compute, exposed_exchange, exposed_copies)
    parts = dict(zip(PARTS, [*(intervals.total(times) for times in work), *(int(value) for value in sums)],
                     strict=True))
    return Partition(trace, steps, host, rows, classes, launched, gaps, parts, _after(gaps, busy, host, steps))


def _explained(idle: Set, trace: Trace, rows: NDArray[np.int64], launched: Launches, host: Host) -> Gaps:
    """Each gap's nanoseconds by cause; they sum to its length."""
    starts, ends = idle[:, 0], idle[:, 1]
    ended = _ended_by(ends, trace.start[rows], launched)
    causes = np.zeros((len(idle), len(CAUSES)), np.int64)
    known = (ended >= 0) & launched.known[ended]
    launch = np.where(known, launched.time[ended], ends).clip(max=ends)
    lane = np.where(known, launched.lane[ended], host.main)
    queued = known & (launch <= starts)
    short = ends - starts < DEVICE_GAP
    causes[queued & short, LATENCY] = (ends - starts)[queued & short]
    causes[queued & ~short, DEPENDENCY] = (ends - starts)[queued & ~short]
    unknown = ((ended >= 0) & ~known) | (not launched.known.any())
    causes[unknown, UNKNOWN] = (ends - starts)[unknown]
    late = ~queued & ~unknown
    causes[late, LATENCY] = (ends - launch)[late]
    for thread in np.unique(lane[late]):
        chosen = np.flatnonzero(late & (lane == thread))
        rest = launch[chosen] - starts[chosen]
        for state, times in host.seen_from(int(thread)).items():
            spent = intervals.before(times, launch[chosen]) - intervals.before(times, starts[chosen])
            causes[chosen, CAUSE_OF[state]] = spent
            rest = rest - spent
        causes[chosen, FORWARD] = rest
    return Gaps(idle, ended, causes)


def _ended_by(ends: NDArray[np.int64], starts: NDArray[np.int64], launched: Launches) -> NDArray[np.int64]:
    """Index of the work that begins at each gap's end; of several, the one launched first; -1 where none does."""
    order = np.lexsort((launched.time, ~launched.known, starts))
    if not len(starts):
        return np.full(len(ends), -1)
    place = np.searchsorted(starts[order], ends).clip(max=len(starts) - 1)
    return np.where(starts[order[place]] == ends, order[place], -1)


def _after(gaps: Gaps, busy: Set, host: Host, steps: Steps) -> dict[str, int]:
    """Nanoseconds of the host's gaps that would close without the waits before them, by DATA and SYNC.

    A wait of the host that the GPU was busy through is credit, at most one step of it; a later gap uses it up.
    """
    waits = [(int(end), CAUSE_OF[state], int(hidden)) for state, times in host.blocked.items()
             for end, hidden in zip(times[:, 1],
                                    intervals.before(busy, times[:, 1]) - intervals.before(busy, times[:, 0]),
                                    strict=True) if hidden > 0]
    waits.sort()
    most = int(np.diff(steps.bounds).mean())
    credit = {CAUSE_OF[DATA]: 0, CAUSE_OF[SYNC]: 0}
    used = dict.fromkeys(credit, 0)
    place = 0
    for end, late in zip(gaps.times[:, 1].tolist(), gaps.causes[:, HOST_CAUSES].sum(axis=1).tolist(), strict=True):
        while place < len(waits) and waits[place][0] <= end:
            _, cause, hidden = waits[place]
            credit[cause] = min(credit[cause] + hidden, most)
            place += 1
        for cause in credit:
            spent = min(credit[cause], late)
            credit[cause] -= spent
            used[cause] += spent
            late -= spent
    return {CAUSES[cause]: spent for cause, spent in used.items()}
