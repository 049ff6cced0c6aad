"""`lfhelpers plan`: recomputation, micro-batch and accumulation for a limit on memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lfhelpers import runs
from lfhelpers.cli.words import Own, job_of, tried
from lfhelpers.errors import LfError


def plan(
    overrides: Annotated[list[str] | None, typer.Argument(
        help="recipe=NAME or FILE.toml, and fields to change: workload.size=small batch.micro=32",
        show_default=False)] = None,
    limit: Annotated[float | None, typer.Option(min=1e-4, help="GiB of a rank; else nearly all of a GPU.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Ranks of the job, on GPUs one each.")] = 1,
    goal: Annotated[str, typer.Option(help="time: the fastest; batch: the largest micro-batch.")] = "time",
    again: Annotated[bool, typer.Option("--again", help="Measure plans anew that the cache holds.")] = False,
    out: Annotated[Path | None, typer.Option(help="A TOML file for the recipe that was chosen.")] = None,
    workload: Own = None,
) -> None:
    """Measure what fits into memory, and how: recomputation, micro-batch, and accumulation at the same effective batch.

    Example: lfhelpers plan workload.size=tiny device=cpu --limit 0.05
    """
    from lfhelpers.bench.memory_plan import plan as find

    if goal not in ("time", "batch"):
        raise LfError(f"--goal {goal} does not exist; take time or batch.")
    found = find(job_of(tried(workload, overrides or [])), limit_gib=limit, nproc=nproc,
                 goal="time" if goal == "time" else "batch", again=again)
    print(found.table())
    if out is not None:
        try:
            runs.write_atomic(out, found.recipe.to_toml().encode())
        except OSError as error:
            raise LfError(f"the recipe {out} can't be written: {error.strerror}; name another file with --out."
                          ) from error
        print(f"recipe: {out}; train it with: lfhelpers launch recipe={out} --nproc {nproc}")
