"""What each thread of the host was doing at any moment, as far as it explains an idle GPU.

A gap is explained by the thread that launched the work which ended it. Where that thread was in no known state, the
main thread's counts (it was still in the loader when the autograd thread had nothing to do), then backward in any
thread (the main thread waits there for the engine). What is left is Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lfhelpers.diagnose.trace.classes import BACKWARD, DATA, STATES, SYNC, host_states
from lfhelpers.diagnose.trace.read import LAUNCH, OPERATOR, Trace
from lfhelpers.diagnose.trace.steps import marks
from lfhelpers.measure import intervals
from lfhelpers.measure.intervals import EMPTY, Set

BETWEEN_NODES = 100_000
"""ns: the engine's own work between two nodes of backward, at most; longer pauses are something else."""


@dataclass(frozen=True)
class Host:
    """States by lane; the sets of one lane don't overlap."""

    main: int
    states: dict[int, dict[int, Set]]
    backward: Set
    blocked: dict[int, Set]
    """DATA and SYNC of the threads that train: when the host could not run ahead."""

    def seen_from(self, lane: int) -> dict[int, Set]:
        """By state, the times that explain a gap ended by a launch from `lane`."""
        found = dict(self.states.get(lane, {}))
        for other in ([self.states.get(self.main, {})] if lane != self.main else []) + [{BACKWARD: self.backward}]:
            own = intervals.joined(found.values())
            for state, times in other.items():
                rest = intervals.subtract(times, own)
                found[state] = intervals.joined([found.get(state, EMPTY), rest])
        return found


def observe(trace: Trace) -> Host:
    """The states of all threads of a trace."""
    rows_of = host_states(trace)
    lanes = sorted({int(lane) for rows in rows_of.values() for lane in np.unique(trace.lane[rows])})
    states = {lane: _states(trace, lane, rows_of) for lane in lanes}
    main = main_lane(trace)
    training = [main, *(lane for lane in lanes if lane != main and len(states[lane][BACKWARD]))]
    blocked = {state: intervals.joined(states[lane][state] for lane in training if lane in states)
               for state in (DATA, SYNC)}
    blocked[SYNC] = intervals.subtract(blocked[SYNC], blocked[DATA])
    backward = intervals.joined(of_lane[BACKWARD] for of_lane in states.values())
    return Host(main, states, backward, blocked)


def main_lane(trace: Trace) -> int:
    """The thread that runs the steps: that of the profiler's marks if it does any work, else that with most of it."""
    busy = np.bincount(trace.lane[trace.rows(LAUNCH, OPERATOR)], minlength=len(trace.lanes))
    rows = marks(trace)
    if len(rows):
        lane = int(trace.lane[rows[0]])
        if busy[lane] > 1 and not trace.lanes[lane].gpu:
            return lane
    return int(busy.argmax()) if len(busy) else 0


def _states(trace: Trace, lane: int, rows_of: dict[int, np.ndarray]) -> dict[int, Set]:
    """Disjoint sets of one lane, the states in the order of their precedence."""
    here = trace.lane == lane
    found: dict[int, Set] = {}
    taken = EMPTY
    for state in STATES:
        rows = np.flatnonzero(rows_of[state] & here)
        times = intervals.union(trace.start[rows], trace.end[rows])
        if state == BACKWARD:
            times = _closed(times)
        found[state] = intervals.subtract(times, taken)
        taken = intervals.joined([taken, times])
    return found


def _closed(times: Set) -> Set:
    """The set with pauses up to BETWEEN_NODES filled."""
    if len(times) < 2:
        return times
    near = times[1:, 0] - times[:-1, 1] <= BETWEEN_NODES
    return intervals.joined([times, np.column_stack([times[:-1, 1], times[1:, 0]])[near]])
