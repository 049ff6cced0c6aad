"""`lf.plan`: from a recipe and a limit on memory to one that makes the most of it, all measured on this machine.

The planner measures plans of recomputation and takes one for the limit. Without a plan and with it, the largest
micro-batch is searched, each rank on its own device, and all take the smallest; accumulation then keeps the effective
batch as it was, and that step is timed. The faster side is the answer. Where more samples would fit than a step has,
every rule for the learning rate is put beside a larger effective batch, as a suggestion: what is learnt is then another
thing, so it is pulled by hand and must pass the gate of a `changed` lever (lesson 06).

Every measurement has a process of its own, so what doesn't fit costs nobody else anything; the price is minutes. Bytes
are what torch's allocator hands out, on a CPU those that levers.limit counts, by which the run is held to its limit.
Importing this module loads no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lfhelpers.diagnose.report import aligned
from lfhelpers.errors import LfError
from lfhelpers.levers import batch
from lfhelpers.levers.activations_choice import GIB, NoRoom, Survey
from lfhelpers.levers.activations_plan import QUICK, Effort
from lfhelpers.levers.table import Lever
from lfhelpers.recipe import Recipe, recipe

if TYPE_CHECKING:
    from lfhelpers.train.planner import Planned

Goal = Literal["time", "batch"]
MORE = 4
"""Times a step's samples of a rank, up to which larger micro-batches are tried."""


@dataclass(frozen=True)
class Side:
    """The recipe without a plan or with one, at its largest micro-batch and with the effective batch that was asked."""

    name: str
    recipe: Recipe
    largest: int = 0
    """Samples of the largest micro-batch that fits every rank; 0 where none does."""
    peak: int = 0
    """Bytes of a step of `recipe`, at most."""
    ms: float = math.nan
    """Median milliseconds of that step, all its micro-batches, of a rank alone."""
    trouble: str = ""
    """Why it can't be trained, in one sentence."""

    @property
    def samples_per_s(self) -> float:
        """Of one rank."""
        return 1e3 * self.recipe.batch.micro * self.recipe.batch.accumulate / self.ms


@dataclass(frozen=True)
class MemoryPlan:
    """What `plan` found. `print` shows `table()`; `lf.launch(found.recipe, found.nproc)` trains what was chosen."""

    asked: Recipe
    nproc: int
    limit: float
    """Bytes that a rank may take."""
    survey: Survey
    sides: tuple[Side, ...]
    chosen: Side
    larger: tuple[Lever, ...]
    """Suggestions: a larger effective batch under each rule for the learning rate; none where none would fit."""

    @property
    def recipe(self) -> Recipe:
        """What to launch: the chosen plan, micro-batch and accumulation, at the effective batch that was asked."""
        return self.chosen.recipe

    def table(self) -> str:
        """The sides, the choice and the suggestions as plain text."""
        asked = self.asked.batch
        lines = [f"{self.asked.name}: {self.nproc} x {asked.micro} x {asked.accumulate} samples a step (ranks x "
                 f"micro-batch x accumulation), within {self.limit / GIB:.3g} GiB a rank"]
        lines += aligned([_row(side, side is self.chosen) for side in self.sides])
        lines += [f"note: {side.name}: {side.trouble}" for side in self.sides if side.trouble]
        if self.larger:
            lines.append("a larger effective batch fits; it changes what is learnt, so only with its gate:")
        return "\n".join([*lines, *(f"- {lever.name}: {lever.why}" for lever in self.larger)])

    __str__ = table


def plan(base: str | Path | Recipe = "competent", *overrides: str, limit_gib: float | None = None, nproc: int = 1,
         goal: Goal = "time", effort: Effort = QUICK, again: bool = False) -> MemoryPlan:
    """The recipe's plan of recomputation, micro-batch and accumulation for a limit on memory, measured here.

    limit_gib: GiB of a rank; none given: the recipe's batch.limit_gib, or nearly all of the GPU; a CPU needs one.
    nproc: ranks of the effective batch, of which each searches on its own device in a job where there are several.
    goal: the plan to hold against none: the fastest within the limit at this micro-batch ("time"; where none is, as the
    other), or that for the largest micro-batch ("batch"). again: measure plans anew that the cache holds.

    Call it before this process has used CUDA. Raises LfError for a CPU without a limit, and where no side fits.
    """
    from lfhelpers.measure import hardware
    from lfhelpers.train import fit

    job = recipe(base, *overrides)
    job = job if limit_gib is None else job.with_(**{"batch.limit_gib": limit_gib})
    if job.batch.limit_gib is None and hardware.device(job.device)[0] == "cpu":
        raise LfError("lf.plan on a CPU has no limit to plan for: give limit_gib (lfhelpers plan --limit), or "
                      "batch.limit_gib in the recipe.")
    planned = _planned(job, goal, effort, again)
    asked = {"without a plan": job.with_(**{"activations.plan": "none", "activations.blocks": (),
                                            "activations.recompute_every": 0})}
    if planned.point.family != "none":
        asked[planned.point.name] = planned.recipe
    sides = tuple(_side(name, side, nproc) for name, side in asked.items())
    fitting = [side for side in sides if not side.trouble]
    if not fitting:
        raise LfError(f"within {fit.room(job) / GIB:.3g} GiB {'; '.join(f'{it.name}: {it.trouble}' for it in sides)}")
    rank: dict[Goal, Callable[[Side], Any]] = {"time": lambda side: side.samples_per_s,
                                               "batch": lambda side: (side.largest, side.samples_per_s)}
    chosen = max(fitting, key=rank[goal])
    return MemoryPlan(job, nproc, fit.room(job), planned.survey, sides, chosen, _larger(chosen))


def _planned(job: Recipe, goal: Goal, effort: Effort, again: bool) -> Planned:
    from lfhelpers.train import planner

    try:
        return planner.plan(job, goal=goal, effort=effort, again=again)
    except NoRoom:  # at this micro-batch; the search for a smaller one is to come
        return planner.plan(job, goal="batch", effort=effort)


def _side(name: str, job: Recipe, nproc: int) -> Side:
    """A side's search, and its step as it would be trained."""
    from lfhelpers.train import fit

    most = MORE * job.batch.micro * job.batch.accumulate
    side = Side(name, job)
    try:
        side = replace(side, largest=_agreed(job, nproc, most))
        side = replace(side, recipe=batch.accumulated(job, side.largest))
        found = fit.footprint(side.recipe.with_(**{"log.skip": 0}), steps=5)
    except LfError as error:
        return replace(side, trouble=str(error))
    return replace(side, peak=found.peak, ms=statistics.median(found.ms))


def _agreed(job: Recipe, nproc: int, most: int) -> int:
    """The largest micro-batch that fits every rank; with one it is searched from here."""
    from lfhelpers.train import fit

    if nproc == 1:
        return fit.largest(job, most).largest
    from lfhelpers.bench.memory_ranks import FILE, HERE
    from lfhelpers.launch import launch

    run = launch(job, nproc, watch=False, module=HERE, args=[str(most)])
    return int(run.read(FILE)["agreed"])


def _larger(side: Side) -> tuple[Lever, ...]:
    """Each rule's lever for the largest micro-batch, where that holds more samples than a step has."""
    from lfhelpers.workloads.base import find

    job = side.recipe
    if side.largest <= job.batch.micro * job.batch.accumulate:
        return ()
    rate = job.optimizer.lr or find(job).default_lr()
    return tuple(batch.larger(job, side.largest, 1, rate, rule) for rule in batch.RULES)


def _row(side: Side, chosen: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"plan": side.name, "largest micro-batch": side.largest}
    if not side.trouble:
        made = side.recipe.batch
        row |= {"micro x accumulate": f"{made.micro} x {made.accumulate}", "peak GiB": f"{side.peak / GIB:.3g}",
                "step ms": side.ms, "samples/s": side.samples_per_s}
    return row | {"": "chosen" if chosen else ""}
