"""`lfhelpers bench timeline` and `trace`: steps to look at, and how fast traces are diagnosed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lfhelpers.cli.bench import bench_app
from lfhelpers.cli.recording import Onto, Out, finish, keeping
from lfhelpers.errors import LfError


@bench_app.command("timeline")
def timeline(
    out: Annotated[Path | None, typer.Option(help="File of the timeline; needs a GPU.")] = None,
    traces: Annotated[Path | None, typer.Option(help="Folder for two profiler traces, of 1 MB at most each.")] = None,
    case: Annotated[str, typer.Option(help="SIZE_mbMICRO.")] = "small_mb32",
) -> None:
    """A few milliseconds of a step, as found and full, for the picture of a lesson; and whole steps as traces.

    Example: lfhelpers bench timeline --out timeline.json --traces traces
    """
    from lfhelpers.bench import timeline as bench
    from lfhelpers.bench.step import cases

    if out is None and traces is None:
        raise LfError("bench timeline has nothing to write; name --out FILE.json, --traces FOLDER, or both.")
    (found,) = cases([case]) or ()
    if out is not None:
        print(f"timeline: {bench.record(found, out)}")
    if traces is not None:
        print("traces: " + " and ".join(f"{path} ({path.stat().st_size / 1e6:.2f} MB)"
                                        for path in bench.traces(found, traces)))


@bench_app.command("trace")
def trace(
    events: Annotated[list[int] | None, typer.Option(min=300, help="Repeatable; else 100,000 and 2 million.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of each.")] = 3,
    out: Out = None,
    onto: Onto = None,
) -> None:
    """How long, and with how much memory, traces of 100,000 and of 2 million events are read and diagnosed.

    Example: lfhelpers bench trace --events 100000
    """
    from lfhelpers.bench.diagnosis_scale import SIZES, run

    finish(run(tuple(events or SIZES), repeats, keeping(out, onto)), out, onto)
