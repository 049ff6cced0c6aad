"""`lfhelpers tune`: the search over all knobs of a recipe, resumed by calling it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lfhelpers.cli.recording import Out, keeping
from lfhelpers.cli.words import Own, tried

if TYPE_CHECKING:
    from lfhelpers.tune.search import Search

Overrides = Annotated[list[str] | None, typer.Argument(
    help="recipe=NAME or FILE.toml, and fields to change: workload.size=small batch.micro=32", show_default=False)]


def tune(
    name: Annotated[str, typer.Argument(help="The study; one of this name goes on where it was.")],
    overrides: Overrides = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials that have a job, over all calls.")] = 25,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Of jobs, over all calls.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Ranks of each job, on GPUs one each.")] = 1,
    steps: Annotated[int, typer.Option(min=8, help="Timed steps of each trial.")] = 40,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds after which a trial's job hangs.")] = 300.0,
    memory: Annotated[float | None, typer.Option(min=0.01, help="GiB a trial may reserve, on a GPU.")] = None,
    margin: Annotated[float, typer.Option(min=0.0, help="Share by which a loss may be above the base's.")] = 0.02,
    allow: Annotated[str, typer.Option(help="Changes allowed: exact, reordered or changed.")] = "reordered",
    knob: Annotated[list[str] | None, typer.Option(help="A knob's name; repeatable; else all.")] = None,
    start: Annotated[list[str] | None, typer.Option(help="A recipe to try first; else competent and full.")] = None,
    evidence: Annotated[str | None, typer.Option(help="An ablated or traced run: start from its ceilings.")] = None,
    confirm: Annotated[list[str] | None, typer.Option(help="field=value, for the runs that verify the winner.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Fresh runs of winner and base.")] = 2,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Run the winner anew, and ask its gate.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the space and the budget; run nothing.")] = False,
    workload: Own = None,
    out: Out = None,
) -> None:
    """Search all knobs of a recipe for speed at no less quality; stopped and called again, it goes on where it was.

    Example: lfhelpers tune mine recipe=full --trials 25 --minutes 30
    """
    from lfhelpers.runs import load
    from lfhelpers.tune import STARTS, plan

    changes = tried(workload, overrides or [])
    base = next((each.removeprefix("recipe=") for each in changes if each.startswith("recipe=")), "full")
    given: dict[str, Any] = {
        "trials": trials, "minutes": minutes, "nproc": nproc, "steps": steps, "limit_s": limit, "margin": margin,
        "memory_gib": memory, "allow": _allowed(allow), "knobs": tuple(knob or ()), "starts": start or STARTS,
        "evidence": load(evidence) if evidence else None}
    words = [name, base, *(each for each in changes if not each.startswith("recipe="))]
    if dry_run:
        _dry(plan(*words, **given))
    else:
        _run(words, given | {"verify": verify, "rounds": rounds, "confirm": confirm or ()}, out)


def _allowed(allow: str) -> str:
    from lfhelpers.errors import LfError

    if allow not in ("exact", "reordered", "changed"):
        raise LfError(f"--allow {allow} does not exist; take exact, reordered or changed.")
    return allow


def _run(words: list[str], given: dict[str, Any], out: Path | None) -> None:
    from lfhelpers.measure import record as records
    from lfhelpers.tune import tune as search
    from lfhelpers.tune.report import table
    from lfhelpers.tune.verify import WINNER

    keep = keeping(out)
    found = search(*words, keep=lambda result: keep(result.record()), **given)
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table(found))
    print(found.sentence)
    record = found.record()
    print(f"record: {records.write(record, out) if out else records.save(record)}")
    if found.verified and found.verified.recipe:
        print(f"recipe: {found.search.place / WINNER}")


def _dry(search: Search) -> None:
    """The space, how many jobs it holds, and what the search may cost at most."""
    import math

    from rich.table import Table

    from lfhelpers.tune import space

    rows = space.rows(search.base, search.knobs)
    drawn = Table(*rows[0], title=f"study {search.options.name}: {len(rows)} knobs")
    for row in rows:
        drawn.add_row(*map(str, row.values()))
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(drawn)
    count, options = math.prod(len(knob.positions) for knob in search.knobs), search.options
    most = options.trials * options.limit_s / 60
    print(f"{count:,} combinations; budget: {options.trials} trials of {search.base.steps} steps, "
          + (f"{options.minutes:g} minutes" if options.minutes is not None else f"at most {most:.0f} minutes")
          + f"; first: {', '.join(['the base', *search.starts])}")
