"""The verbs of prediction: ablate a step, tell what each lever could win, and score what came of it.

They stand apart from the package, whose modules have the same names. None imports torch before it is called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run, load

if TYPE_CHECKING:
    from lfhelpers.diagnose.ceilings import Ceilings
    from lfhelpers.diagnose.predictions import Score
    from lfhelpers.measure.statistics import Effect


def ablate(job: Recipe, nproc: int = 1, *, blocks: int = 6, steps: int = 4, only: Sequence[str] = (),
           watch: bool = True) -> Run:
    """Take parts of the recipe's step away and time what is left, on `nproc` ranks in processes of their own.

    The run's folder holds ablation.json and a trace; `ceilings(run)` reads both, and what they promise is kept to be
    scored. blocks x steps: steady steps of each variant, at least 10. only: variants (ablation.MEANING) to time beside
    the full step, all for none. Raises LaunchError where the job fails.
    """
    from lfhelpers.diagnose import predictions
    from lfhelpers.launch import launch
    from lfhelpers.launch.prepare import prepare

    run = launch(prepare(job, nproc), nproc, watch=watch, module="lfhelpers.diagnose.ablate_ranks",
                 args=[str(blocks), str(steps), *only])
    predictions.keep(ceilings(run), run.id)
    return run


def ceilings(found: str | os.PathLike[str] | Run) -> Ceilings:
    """What each lever could win, [realistic, ideal], from a run that was ablated or traced, or from any trace.

    Raises LfError where there is no evidence, or too little.
    """
    from lfhelpers.diagnose import tiers

    place = None if isinstance(found, Run) else Path(found)
    if place is not None and place.exists() and not (place / "recipe.toml").exists():
        return tiers.of_path(place)
    return tiers.of_run(load(found))


def watch(what: Any, model: Any = None, optimizer: Any = None, *, skip: int = 5,
          trace: str | os.PathLike[str] | None = None, show: bool = True) -> Any:
    """Watch a loop of your own: `for batch in lf.watch(loader, model, optimizer)`; or, given a run alone, follow it.

    Of a loop, the step report and ceilings are printed when it ends (show), and `.report()` of what this returns gives
    them at any time. skip: first steps that are not counted. trace: a folder for a profiler's trace of three steps,
    from which the ceilings are then read; those steps are not counted either. The loop, its batches and its random
    numbers stay as they are.
    """
    if model is None:
        from lfhelpers.launch import watch as follow

        return follow(load(what))
    from lfhelpers.diagnose.watched import Watched

    return Watched(what, model, optimizer, skip=skip, trace=Path(trace) if trace is not None else None, show=show)


def score(lever: str, effect: Effect | float, end: str = "realistic") -> Score:
    """Hold the newest prediction for a lever, or a cause, against what pulling it won; see diagnose.predictions."""
    from lfhelpers.diagnose import predictions

    return predictions.score(lever, effect, end)
