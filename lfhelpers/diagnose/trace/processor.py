"""A trace without GPU work: the main thread takes the GPU's place, and its time is what is divided.

Operators are told apart by what they belong to (data, optimizer, backward; the rest is forward); exchanges run in
threads of their own and count where the main thread does nothing else; what no event covers is Python. An idle GPU is
never reported here: there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lfhelpers.diagnose.trace.classes import BACKWARD, DATA, HOST_EXCHANGE, OPTIMIZER, host_states
from lfhelpers.diagnose.trace.host import main_lane
from lfhelpers.diagnose.trace.read import ANNOTATION, OPERATOR, Trace
from lfhelpers.diagnose.trace.steps import Steps, on_host
from lfhelpers.measure import intervals
from lfhelpers.measure.intervals import Set

PARTS = ("data", "forward", "backward", "optimizer", "exposed communication", "python")


@dataclass(frozen=True)
class HostPartition:
    """The main thread's time in its steps; `parts` are ns by PARTS and sum to `length`."""

    trace: Trace
    steps: Steps
    main: int
    window: Set
    worked: Set
    """When the main thread did anything that an event covers."""
    exchange: Set
    parts: Mapping[str, int]

    @property
    def length(self) -> int:
        """Nanoseconds of all steps together."""
        return intervals.total(self.window)

    @property
    def busy(self) -> Set:
        """When the main thread worked or ranks exchanged."""
        return intervals.joined([self.worked, self.exchange])

    @property
    def windows(self) -> int:
        """Steps."""
        return len(self.steps.bounds) - 1

    def percent(self, part: str) -> float:
        """A part's share."""
        return 100 * self.parts[part] / self.length


def partition(trace: Trace) -> HostPartition:
    """The partition of a trace's main thread."""
    main = main_lane(trace)
    steps = _steps(trace, main)
    spans = steps.host if len(steps.host) else np.array([[steps.bounds[0], steps.bounds[-1]]])
    window = intervals.union(spans[:, 0], spans[:, 1])
    states, here, operators = host_states(trace), trace.lane == main, trace.kind == OPERATOR
    rows_of = {"data": states[DATA], "optimizer": states[OPTIMIZER], "backward": states[BACKWARD] & operators,
               "forward": operators}
    kept: dict[str, Set] = {}
    taken = intervals.EMPTY
    for part, chosen in rows_of.items():
        times = intervals.intersect(_times(trace, chosen & here), window)
        kept[part] = intervals.subtract(times, taken)
        taken = intervals.joined([taken, times])
    exchange = intervals.intersect(_times(trace, exchanges(trace)), window)
    kept["exposed communication"] = intervals.subtract(exchange, taken)
    # What an annotation calls backward comes last: in it the thread also waits for its peers.
    rest = intervals.intersect(_times(trace, states[BACKWARD] & here), window)
    rest = intervals.subtract(rest, intervals.joined([taken, exchange]))
    kept["backward"] = intervals.joined([kept["backward"], rest])
    worked = intervals.joined([taken, rest])
    kept["python"] = intervals.subtract(window, intervals.joined([worked, exchange]))
    parts = {part: intervals.total(kept[part]) for part in PARTS}
    return HostPartition(trace, steps, main, window, worked, exchange, parts)


def _steps(trace: Trace, main: int) -> Steps:
    """The host's steps, or the main thread's whole span where none is marked."""
    source, names, spans = on_host(trace)
    if len(spans):
        return Steps(source, tuple(names), spans, np.r_[spans[:, 0], spans[-1, 1]], ())
    here = trace.lane == main
    whole = np.array([trace.start[here].min(), trace.end[here].max()])
    return Steps("whole span", ("whole span",), spans, whole,
                 ("no step is marked: the whole span of the main thread is reported as one",))


def exchanges(trace: Trace) -> np.ndarray:
    """bool [n]: the rows in which the host itself exchanges with other ranks."""
    return np.isin(trace.kind, (ANNOTATION, OPERATOR)) & trace.named(HOST_EXCHANGE)


def _times(trace: Trace, rows: np.ndarray) -> Set:
    return intervals.union(trace.start[rows], trace.end[rows])
