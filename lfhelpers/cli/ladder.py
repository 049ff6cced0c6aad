"""`lfhelpers ladder`: levers one by one, each behind its gate, from shards to weights."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from lfhelpers.cli.recording import Out, keeping
from lfhelpers.cli.words import Own, tried


def ladder(
    size: Annotated[str, typer.Option(help="Size of the model.")] = "tiny",
    micro: Annotated[int, typer.Option(min=1, help="Samples a step and rank.")] = 16,
    nproc: Annotated[int, typer.Option(min=1, help="Ranks, on GPUs one each.")] = 1,
    steps: Annotated[int, typer.Option(min=5, help="Timed steps of each job.")] = 40,
    anchors: Annotated[int, typer.Option(min=1, help="How often as found, competent and full are run.")] = 3,
    without: Annotated[bool, typer.Option("--without/--only-climb", help="Then leave each lever out.")] = True,
    predict: Annotated[bool, typer.Option(help="Trace each rung: what is the next one promised, and won?")] = True,
    lever: Annotated[list[str] | None, typer.Option(help="A lever's name; repeatable; else all.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="field=value, for all rungs.")] = None,
    workload: Own = None,
    out: Out = None,
) -> None:
    """From the recipe as found to the full one, lever by lever; stopped and called again, it goes on where it was.

    Example: lfhelpers ladder --size small --micro 32
    """
    from lfhelpers.bench import ladder as climb
    from lfhelpers.bench.ladder_table import table
    from lfhelpers.measure import record as records

    changes = tried(workload, [*(overrides or []), *([f"workload.size={size}"] if workload else [])])
    found = climb(size, micro, nproc, steps=steps, anchors=anchors, without=without, predict=predict,
                  levers=lever or (), overrides=changes, keep=keeping(out))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table(found))
    print(f"record: {records.write(found, out) if out else records.save(found)}")
