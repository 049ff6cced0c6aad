"""Which files a path means: one trace, or a folder with a trace a rank."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from lfhelpers.diagnose.trace.read import Trace, read
from lfhelpers.diagnose.trace.report import Diagnosis
from lfhelpers.errors import LfError
from lfhelpers.measure import record

PAIR = "trace_as_found.json.gz", "trace_full.json.gz"
"""What `lfhelpers bench timeline --traces` writes, beside the records of a machine."""
SUFFIX = re.compile(r"\.json(\.gz)?$", re.IGNORECASE)


def diagnose_trace(path: Path) -> Diagnosis:
    """Read and judge a trace, or all traces of a folder as the ranks of one job.

    In a folder, files that are no trace are left out and named. Raises LfError where nothing can be read, and where two
    traces are of one rank.
    """
    if not path.is_dir():
        return Diagnosis.of([read(path)])
    files = sorted(file for file in path.iterdir() if SUFFIX.search(file.name) and not file.name.startswith("."))
    traces: list[Trace] = []
    skipped: list[str] = []
    for file in files:
        try:
            traces.append(read(file))
        except LfError as error:
            skipped.append(f"left out: {error}")
    if not traces:
        why = f": {skipped[0]}" if skipped else ", no file that ends in .json or .json.gz"
        raise LfError(f"{path} holds no trace{why}")
    return Diagnosis.of(_ranked(path, traces), tuple(skipped))


def traces_of(folder: Path) -> Path | None:
    """The folder of a run's traces; None where it was not profiled."""
    traces = folder / "traces"
    return traces if traces.is_dir() and any(SUFFIX.search(file.name) for file in traces.iterdir()) else None


def recorded_pair(where: str) -> tuple[Path, Path] | None:
    """The recorded traces of the step as found and in full, of the machine `where`; None where there are none."""
    folder = record.reference_path("diagnosis", where).parent
    pair = folder / PAIR[0], folder / PAIR[1]
    return pair if all(path.exists() for path in pair) else None


def _ranked(path: Path, traces: list[Trace]) -> list[Trace]:
    """The traces in order of rank; LfError where two are of one."""
    if len(traces) == 1:
        return traces
    named = {trace.rank for trace in traces}
    if named == {None}:
        traces = [replace(trace, rank=place) for place, trace in enumerate(traces)]
    by_rank: dict[int | None, Trace] = {}
    for trace in traces:
        if trace.rank in by_rank:
            whose = "no rank" if trace.rank is None else f"rank {trace.rank}"
            raise LfError(f"{by_rank[trace.rank].path.name} and {trace.path.name} in {path} are both of {whose}; leave "
                          "one recording of each rank in the folder.")
        by_rank[trace.rank] = trace
    if None in by_rank:
        raise LfError(f"{by_rank[None].path.name} in {path} names no rank, neither inside nor in its name; rename it "
                      "to rank-N.json.")
    return [by_rank[rank] for rank in sorted(rank for rank in by_rank if rank is not None)]
