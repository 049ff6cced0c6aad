"""`lfhelpers check RUN`: which pitfalls a run is in; `lfhelpers replay RUN --step N`: a bad step again, alone."""

from __future__ import annotations

from typing import Annotated

import typer


def check(run: Annotated[str, typer.Argument(help="A run's name, or part of it.")]) -> None:
    """Look for the pitfalls of notebook 07 in a finished or running run; exit code 1 where there is one.

    Example: lfhelpers check competent
    """
    from lfhelpers.pitfalls.checked import check as look

    found = look(run)
    for item in found:
        print(item)
    if not found:
        print("no pitfall found.")
    raise typer.Exit(int(bool(found)))


def replay(
    run: Annotated[str, typer.Argument(help="A run's name, or part of it.")],
    step: Annotated[int, typer.Option(min=1, help="The step that was not finite; the run's log names it.")],
    rank: Annotated[int, typer.Option(min=0, help="The rank that found it.")] = 0,
) -> None:
    """Run the kept batch of a step that was not finite alone, and name the operator; exit code 1 where it is finite.

    Example: lfhelpers replay competent --step 7
    """
    from lfhelpers.train.replay import replay as again

    found = again(run, step, rank)
    print(found)
    raise typer.Exit(int(found.finding is None))
