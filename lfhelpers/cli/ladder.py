"""`lfhelpers ladder`: levers one by one, each behind its gate, from shards to weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lfhelpers.cli.recording import Out, keeping
from lfhelpers.cli.words import Own, tried

if TYPE_CHECKING:
    from lfhelpers.measure.record import Record


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
    svg: Annotated[Path | None, typer.Option(help="Write the picture of the rungs into this file too.")] = None,
) -> None:
    """From the recipe as found to the full one, lever by lever; stopped and called again, it goes on where it was.

    Example: lfhelpers ladder --size small --micro 32 --svg ladder.svg
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
    if svg is not None:
        _draw(found, svg)
        print(f"picture: {svg}")


def _draw(record: Record, path: Path) -> None:
    """The ladder's bars as one file, replaced in one step. Raises LfError where it can't be written."""
    from lfhelpers import runs
    from lfhelpers.bench.ladder_table import lines
    from lfhelpers.errors import LfError
    from lfhelpers.notebook import figures
    from lfhelpers.notebook.ladder_charts import climb_bars

    chart = climb_bars(lines(record))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        runs.write_atomic(path, figures.svg(chart.figure, chart.alt).encode())
    except OSError as error:
        raise LfError(f"the picture {path} can't be written: {error.strerror}; name another file with --svg."
                      ) from error
