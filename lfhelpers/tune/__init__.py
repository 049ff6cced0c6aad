"""The search over all knobs of a recipe at once: Optuna proposes, each trial is a job, quality is a limit.

One lever at a time, as the ladder climbs, misses what knobs do together: more loader workers help until the cores are
needed elsewhere, and a larger micro-batch may fit only with recomputation, which alone costs time. A search sees that,
and costs a job for each look: worth it where a step's time is spread over several knobs, and not where one holds it.
The verb imports nothing heavy before it is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run

if TYPE_CHECKING:
    from lfhelpers.tune.report import Result
    from lfhelpers.tune.search import Search

STARTS = ("competent", "full")


def tune(name: str, base: str | Path | Recipe = "full", *overrides: str, verify: bool = True, rounds: int = 2,
         confirm: Sequence[str] = (), starts: Sequence[str | Path | Recipe] = STARTS, evidence: Run | None = None,
         keep: Callable[[Result], Any] = lambda result: None, **options: Any) -> Result:
    """Search the knobs of `base` for the highest rate at no less quality; called again, it goes on where it was.

    The study lies in studies/NAME beside the runs. options: trials, minutes, nproc, steps, limit_s, memory_gib, margin,
    allow, knobs, seed (tune.options.Options). starts: recipes tried first, as near as the knobs come. evidence: a run
    that was ablated or traced, whose ceilings give further start values. verify: run the winner again `rounds` times
    beside the base, under the overrides `confirm`, and ask its gate. keep: is given what is found after each trial.

    Raises LfError for a study begun with other settings or on another machine, and where the base itself fails.
    """
    from lfhelpers.tune.report import Result
    from lfhelpers.tune.verify import verify as ask

    search = plan(name, base, *overrides, starts=starts, evidence=evidence,
                  keep=lambda search: keep(Result(search)), **options).go()
    return Result(search, ask(search, rounds, confirm=confirm) if verify else None)


def plan(name: str, base: str | Path | Recipe = "full", *overrides: str,
         starts: Sequence[str | Path | Recipe] = STARTS, evidence: Run | None = None,
         keep: Callable[[Search], Any] = lambda search: None, **options: Any) -> Search:
    """The search that `tune` runs, with its space and start values; no job is started."""
    from lfhelpers.bench.climb import machine
    from lfhelpers.launch.prepare import prepare
    from lfhelpers.tune.options import Options
    from lfhelpers.tune.search import Search

    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise LfError(f"a study can't be named '{name}'; take letters, digits, '-', '_' and '.'.")
    chosen = Options(name, **options)
    job = recipe(base, *overrides)
    where = machine(chosen.nproc, job.workload.use)
    if not where.frozen:  # the recipe `full` asks for it
        job = job.with_(**{"frozen.ahead": False})
    search = Search(chosen, prepare(job, chosen.nproc), where, keep=keep)
    search.starts = {each.name: each for each in (recipe(one, *overrides) for one in starts)}
    if evidence is not None:
        search.starts |= _predicted(search, evidence)
    return search


def _predicted(search: Search, evidence: Run) -> dict[str, Recipe]:
    """The base with the levers of each cause that the ceilings name, one cause more at a time."""
    from lfhelpers.diagnose.ceilings import REMEDIES
    from lfhelpers.diagnose.verbs import ceilings
    from lfhelpers.levers.table import BESIDE, LEVERS

    named = {lever.name: lever for lever in LEVERS + BESIDE if lever.obstacle(search.where) is None}
    job, found = search.base, dict[str, Recipe]()
    for cause, _ in ceilings(evidence).path():
        for lever in REMEDIES[cause].levers:
            try:
                job = named[lever].pull(job) if lever in named else job
            except LfError:  # it can't be pulled beside what the base has; the search may find out about the others
                continue
        found[f"ceiling of {cause}"] = job
    return found
