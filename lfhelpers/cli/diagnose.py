"""`lfhelpers diagnose`: a run's report, or a profiler trace's, in the terminal, as JSON or as one HTML file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lfhelpers.cli.words import Own, job_of, tried
from lfhelpers.errors import LfError

if TYPE_CHECKING:
    from lfhelpers.diagnose.trace import Diagnosis, TraceComparison
    from lfhelpers.recipe import Recipe
    from lfhelpers.runs import Run

Out = Annotated[Path | None, typer.Option("--json", help="Write the diagnosis as JSON; - for the terminal.")]


def diagnose(
    path: Annotated[str | None, typer.Argument(
        help="A trace (.json or .json.gz), a folder of ranks' traces, or a run.", show_default=False)] = None,
    against: Annotated[str | None, typer.Option(help="A second one: what changed from PATH to it.")] = None,
    json: Out = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML file that needs nothing else.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON's schema.")] = False,
    workload: Own = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="With --workload: field=value.")] = None,
) -> None:
    """Why a step is slow: from a run's own records, from any profiler trace, or by trying a workload of your own.

    Example: lfhelpers diagnose trace.json.gz --html page.html
    """
    if workload is not None:
        if path is not None or against is not None:
            raise LfError("--workload tries a workload anew, so no PATH or --against goes with it.")
        path = _tried(workload, overrides or [])
        if json is None and html is None:
            return
    if schema:
        from lfhelpers.diagnose.trace.schema import schema as described

        _write(described(), Path("-"))
        return
    if path is None:
        raise LfError("diagnose needs a trace, a folder of traces, or a run; see `lfhelpers diagnose --help`.")
    quiet = json == Path("-")
    first, second = _run(path), _run(against) if against is not None else None
    if not quiet and workload is None and first and (against is None or second):
        _print_runs(first, second)
    places = [place for place in (_traces(path, first), _traces(against, second)) if place]
    if len(places) < (1 if against is None else 2):
        _untraced(path, first, against, second, wanted=bool(json or html))
        return
    found = _found(places)
    if not quiet:
        _print(found)
    if json is not None:
        _write(found.as_dict() | _ablated(first, against), json)
    if html is not None:
        from lfhelpers.notebook import trace_page

        with _writing(html):
            trace_page.write(html, found)


def _ablated(run: Run | None, against: str | None) -> dict[str, Any]:
    """What the run's ablation adds to its traces' diagnosis: its times, and ceilings that rest on them."""
    from lfhelpers.diagnose.ablation import Ablation
    from lfhelpers.diagnose.tiers import of_run

    found = Ablation.of_run(run) if run is not None and against is None else None
    return {"ablation": found.as_dict(), "ceilings": of_run(run).as_dict()} if found is not None and run else {}


def _found(places: Sequence[Path]) -> Diagnosis | TraceComparison:
    from lfhelpers.diagnose.trace import compare_traces, diagnose_trace

    return diagnose_trace(places[0]) if len(places) == 1 else compare_traces(places[0], places[1])


def _run(path: str) -> Run | None:
    """The run that `path` means; None where it is a file or folder of traces."""
    from lfhelpers.runs import load

    place = Path(path)
    if place.exists() and not (place / "recipe.toml").exists():
        return None
    try:
        return load(path)
    except LfError as error:
        if place.suffix in (".json", ".gz") or len(place.parts) > 1:
            raise LfError(f"there is no {place}; give a trace, a folder of traces, or a run's name.") from error
        raise


def _traces(path: str | None, run: Run | None) -> Path | None:
    from lfhelpers.diagnose.trace.load import traces_of

    return traces_of(run.path) if run else Path(path) if path is not None else None


def _untraced(path: str, first: Run | None, against: str | None, second: Run | None, wanted: bool) -> None:
    """Say what is missing, where something asked for needs traces; a run's report alone needs none."""
    if first and not wanted and (against is None or second):
        return
    runs = [run.id for run in (first, second) if run and _traces(None, run) is None]
    raise LfError(f"run {' and run '.join(runs) or path} holds no traces; record them with "
                  "`lfhelpers launch --profile`.")


def _print_runs(first: Run, second: Run | None) -> None:
    from lfhelpers.diagnose import compare
    from lfhelpers.diagnose import diagnose as of_run

    if second is None and first.read("ablation.json") is not None:
        _print_ablation(first)
    else:
        print(of_run(first).table() if second is None else compare(first, second))


def ablate(
    overrides: Annotated[list[str] | None, typer.Argument(
        help="recipe=NAME or FILE.toml, and fields to change: batch.micro=32", show_default=False)] = None,
    nproc: Annotated[int, typer.Option(help="Processes on this host, one a GPU.")] = 1,
    blocks: Annotated[int, typer.Option(min=3, help="Blocks of each variant of the step.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Steps a block.")] = 4,
) -> None:
    """Time a recipe's step without its loader, exchange, optimizer, ...: what would each remedy win?

    Example: lfhelpers ablate recipe=competent --blocks 6
    """
    run = _measured(job_of(overrides or []), nproc, blocks, steps)
    _print_ablation(run)
    print(f"run folder: {run.path}")


def _tried(workload: str, overrides: Sequence[str]) -> str:
    """The name of a run in which the workload, found to keep to its contract, was ablated as it is found."""
    run = _measured(job_of(tried(workload, overrides), "as_found"), 1, 6, 4)
    _print_ablation(run)
    print(f"run folder: {run.path}\nnext: lfhelpers ladder --workload {workload}")
    return run.id


def _measured(job: Recipe, nproc: int, blocks: int, steps: int) -> Run:
    from lfhelpers.diagnose.verbs import ablate as measured

    return measured(job, nproc, blocks=blocks, steps=steps)


def _print_ablation(run: Run) -> None:
    from rich.console import Console
    from rich.text import Text

    from lfhelpers.diagnose.ablation import Ablation
    from lfhelpers.diagnose.tiers import of_run

    found, ceilings = Ablation.of_run(run), of_run(run)
    assert found is not None, "the caller has looked"
    console = Console(highlight=False)
    console.print(Text(ceilings.verdict, style="bold"), soft_wrap=True)
    console.print(Text(found.head()), soft_wrap=True)
    _tables(console, [found.rows(), ceilings.rows()])
    for note in (*ceilings.notes, _calibration()):
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _print(found: Diagnosis | TraceComparison) -> None:
    from rich.console import Console
    from rich.text import Text

    from lfhelpers.diagnose.trace import TraceComparison
    from lfhelpers.diagnose.trace.compare import of_devices

    console = Console(highlight=False)
    console.print(Text(found.verdict, style="bold"), soft_wrap=True)
    if isinstance(found, TraceComparison):
        for name, side in (("a", found.a), ("b", found.b)):
            console.print(Text(f"{name}: {side.main.head()}: {side.verdict}"), soft_wrap=True)
        _tables(console, [found.rows(), found.group_rows()])
        notes = [note for note in (of_devices(found.a.main, found.b.main),) if note]
    else:
        report = found.main
        console.print(Text(report.head()), soft_wrap=True)
        ceilings = found.ceilings.rows() if found.ceilings else []
        _tables(console, [report.rows(), ceilings, found.rank_rows(), [group.row() for group in report.groups]])
        for pattern in found.patterns:
            console.print(Text(str(pattern)), soft_wrap=True)
        notes = [*found.notes, _calibration()]
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _calibration() -> str:
    from lfhelpers.diagnose.predictions import calibration

    return calibration()


def _tables(console: Any, tables: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    from rich.table import Table

    for rows in tables:
        if not rows:
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        for index, column in enumerate(rows[0]):
            table.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in rows:
            table.add_row(*("" if value is None else str(value) for value in row.values()))
        console.print(table)


def _write(content: Mapping[str, Any], path: Path) -> None:
    import orjson

    from lfhelpers.runs import write_atomic

    data = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"
    if path == Path("-"):
        sys.stdout.write(data.decode())
        return
    with _writing(path):
        write_atomic(path, data)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LfError(f"{path} can't be written: {error.strerror}.") from error
