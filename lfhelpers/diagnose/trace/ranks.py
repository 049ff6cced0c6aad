"""Several ranks of one job: communication divided into transfer and waiting, and the rank that the others wait for.

A collective ends on all ranks at once, and begins on each when that rank gets there. Clocks of hosts differ, so lengths
are compared and not times: the shortest of a collective's lengths is its transfer, and what it lasts longer elsewhere
is waiting for the last rank to come. The rank that waits least is the one that the others wait for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lfhelpers.diagnose.trace.classes import COMPUTE
from lfhelpers.diagnose.trace.collectives import name_of, rows_of
from lfhelpers.diagnose.trace.launches import launches
from lfhelpers.diagnose.trace.partition import Partition
from lfhelpers.diagnose.trace.patterns import Pattern
from lfhelpers.diagnose.trace.processor import HostPartition
from lfhelpers.diagnose.trace.read import Trace
from lfhelpers.diagnose.trace.steps import on_host
from lfhelpers.measure import intervals

LATE_SHARE = 5.0
"""Percent of the step that the others wait for one rank, above which it is called a straggler."""
Key = tuple[str, str, str, int]
Found = Partition | HostPartition


@dataclass(frozen=True)
class RankSplit:
    """One rank's communication in the mean step, ms: transfer, waiting for later ranks, and waiting that nothing hides.

    Times are unions: exchanges that run beside each other count once.
    """

    rank: int
    collectives: int
    transfer_ms: float
    wait_ms: float
    exposed_wait_ms: float


@dataclass(frozen=True)
class Split:
    """All ranks' splits; the straggler, or None; and what a reader must know."""

    ranks: tuple[RankSplit, ...]
    straggler: Pattern | None
    late: int | None
    notes: tuple[str, ...]


def split(found: Mapping[int, Found]) -> Split:
    """Compare the ranks' collectives, given {rank: partition} of two ranks at least."""
    exchanges = {rank: _exchanges(partition.trace) for rank, partition in found.items()}
    notes = _missing({rank: partition.trace for rank, partition in found.items()})
    lengths: dict[Key, list[int]] = defaultdict(list)
    for of_rank, _ in exchanges.values():
        for key, (start, end) in of_rank.items():
            lengths[key].append(end - start)
    shared = {key: min(many) for key, many in lengths.items() if len(many) > 1}
    alone = len(lengths) - len(shared)
    if alone and shared:
        notes.append(f"{alone:,} of {len(lengths):,} collectives are in one rank's trace alone and are left out")
    if not shared:
        notes.append("no communication of one rank has its counterpart in another")
    splits = [_of_rank(rank, found[rank], times, shared, steps) for rank, (times, steps) in sorted(exchanges.items())]
    late = _straggler(splits, found)
    return Split(tuple(splits), late, min(splits, key=lambda item: item.wait_ms).rank if late else None, tuple(notes))


def _of_rank(rank: int, found: Found, times: Mapping[Key, tuple[int, int]], transfer: Mapping[Key, int],
             steps: int) -> RankSplit:
    """Each exchange ends with its transfer, and waits before that."""
    spans = np.array([(start, end - transfer[key], end) for key, (start, end) in times.items() if key in transfer],
                     np.int64).reshape(-1, 3)
    moving = intervals.union(spans[:, 1], spans[:, 2])
    waiting = intervals.subtract(intervals.union(spans[:, 0], spans[:, 1]), moving)
    worked = found.of_class(COMPUTE) if isinstance(found, Partition) else found.worked
    exposed = intervals.subtract(waiting, worked)
    return RankSplit(rank, len(spans), *(intervals.total(part) / steps / 1e6 for part in (moving, waiting, exposed)))


def _straggler(splits: Sequence[RankSplit], found: Mapping[int, Found]) -> Pattern | None:
    """The rank that waits least, if the others wait long for it with nothing to do."""
    last = min(splits, key=lambda item: item.wait_ms)
    wait = float(np.median([item.exposed_wait_ms for item in splits if item is not last])) - last.exposed_wait_ms
    of_last = found[last.rank]
    share = 100 * wait / (of_last.length / of_last.windows / 1e6)
    if share < LATE_SHARE:
        return None
    return Pattern("straggler", share, f"rank {last.rank} comes last to the exchange: the others wait {wait:.1f} ms a "
                   f"step for it with nothing else to do, and it waits {last.wait_ms:.1f} ms",
                   f"look at rank {last.rank} alone: its data, its host's load, its GPU's clock")


def _exchanges(trace: Trace) -> tuple[dict[Key, tuple[int, int]], int]:
    """(start and end in ns of each of a rank's exchanges, by a key that is the same on all ranks; steps that hold any).

    A key is the step in which it was launched, the group, the name, and its number: the library's own, which needs no
    step, or else the order within the step.
    """
    rows = rows_of(trace)
    _, names, spans = on_host(trace)
    launched = launches(trace, rows)
    when = np.where(launched.known, launched.time, trace.start[rows])
    place = np.searchsorted(spans[:, 0], when, side="right") - 1 if len(spans) else np.full(len(rows), -1)
    seen: Counter[tuple[str, str, str]] = Counter()
    found: dict[Key, tuple[int, int]] = {}
    for row, step in zip(rows.tolist(), place.tolist(), strict=True):
        known = trace.collectives.get(row)
        group, name = known.group if known else "", name_of(trace, row)
        times = int(trace.start[row]), int(trace.end[row])
        if known and known.sequence:
            found["", group, name, known.sequence] = times
        else:
            head = (names[step] if step >= 0 else "", group, name)
            found[*head, seen[head]] = times
            seen[head] += 1
    return found, max(1, len(set(place.tolist())))


def _missing(traces: Mapping[int, Trace]) -> list[str]:
    """A note where the job had more ranks than there are traces."""
    worlds = {trace.world for trace in traces.values() if trace.world}
    if len(worlds) > 1:
        return [f"the traces are of jobs with {' and '.join(map(str, sorted(worlds)))} ranks"]
    world = worlds.pop() if worlds else len(traces)
    missing = sorted(set(range(world)) - set(traces))
    if not missing:
        return []
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return [f"{len(missing)} of {world} ranks have no trace here ({shown}): what they wait for, or make others wait "
            "for, is unknown, so transfer is an upper bound"]
