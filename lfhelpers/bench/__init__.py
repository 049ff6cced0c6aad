"""Benchmarks: each measures one claim of the playbook and leaves a record (measure.record) that a later run is held to.

Tests assert values; speed is measured here, because it depends on the machine and on who else uses it. The verb
`ladder` imports nothing heavy before it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lfhelpers.measure.record import Record


def ladder(size: str = "tiny", micro: int = 16, nproc: int = 1, *, steps: int = 40, anchors: int = 3,
           without: bool = True, predict: bool = True, levers: Sequence[str] = (), overrides: Sequence[str] = (),
           keep: Callable[[Record], Any] = lambda record: None) -> Record:
    """Climb from as found to the full stack, each lever behind its gate; then leave each out of the stack.

    Every rung is a job from shards to weights on `nproc` ranks, with `steps` timed steps; as found, competent and full
    are run `anchors` times. predict: trace each rung, and hold the next one against what that promised. A ladder that
    was stopped goes on with the jobs that are done. keep: is given the record so far after each job. Raises LfError
    for an unknown lever, and where as found itself fails.
    """
    from lfhelpers.bench.climb import Ladder, Options
    from lfhelpers.bench.jobs import Jobs
    from lfhelpers.bench.ladder_record import record

    options = Options(size, micro, nproc, steps, anchors, without, predict, tuple(levers), tuple(overrides))
    climbed = Ladder(options, Jobs.of("ladder", options), keep=lambda found: keep(record(found)))
    climbed.climb()
    return record(climbed)
