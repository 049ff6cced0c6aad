"""`lfhelpers new-workload NAME` and `lfhelpers explain LEVER`: the way in, and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lfhelpers.cli.words import Own


def new_workload(
    name: Annotated[str, typer.Argument(help="Its name: speech_model makes speech_model.py:SpeechModel.")],
    folder: Annotated[Path, typer.Option(help="Where the file goes.")] = Path("."),
) -> None:
    """Write a workload that runs as it stands, to be replaced by your own model and data part by part.

    Example: lfhelpers new-workload speech_model
    """
    from lfhelpers.launch.skeleton import write

    file, kind = write(name, folder)
    print(f"{file} holds {kind}, which runs as it stands; try it: lfhelpers diagnose --workload {file}:{kind}")


def explain(
    lever: Annotated[str, typer.Argument(help="A lever's name, or part of it; 'all' lists them.")],
    workload: Own = None,
    run: Annotated[str | None, typer.Option(help="An ablated or traced run, for the ceiling; else the newest.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Ranks that the job would have.")] = 1,
) -> None:
    """What a lever changes, when it can be pulled, what it can win here, and how to do it in torch alone.

    Example: lfhelpers explain 'fused AdamW'
    """
    from lfhelpers.bench.climb import machine
    from lfhelpers.diagnose.explain import explained, overview

    where = machine(nproc, workload or "vla")
    print(overview(where) if lever == "all" else explained(lever, where, run, workload))
