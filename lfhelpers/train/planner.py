"""The planner: measures what each plan of recomputation takes on this machine, and chooses.

Peak and time come from real steps of the real recipe, in a child process (train.plan_trial): without a plan and with
one, in turns, so that clocks and neighbours hit both alike. A plan that doesn't fit is a point with what it would need,
and where its process dies the next one goes on behind it; what has been measured is kept after each point, so a stopped
search continues. Results are cached by model, shapes, software and hardware. The price is minutes, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import orjson

from lfhelpers.errors import LfError
from lfhelpers.levers import activations_choice as choice
from lfhelpers.levers import compile_cache
from lfhelpers.levers.activations_choice import GIB, Point, Survey
from lfhelpers.levers.activations_plan import QUICK, Candidate, Effort
from lfhelpers.measure import hardware, isolated
from lfhelpers.recipe import Recipe
from lfhelpers.train import plan_trial
from lfhelpers.train.fit import KILLED, room

SHAPING = ("workload", "precision", "compile", "graph", "frozen", "optimizer")
"""Sections of a recipe that change what a step takes."""
HOST = "SIGKILL ended its process: the host ran out of memory"
NOTHING = f"{HOST} before the step without a plan was measured; take a smaller batch.micro or workload.size."


@dataclass(frozen=True)
class Planned:
    """A choice: the recipe with the plan, its point, and all that it was chosen from."""

    recipe: Recipe
    point: Point
    survey: Survey


def plan(job: Recipe, limit_gib: float | None = None, goal: Literal["time", "batch"] = "time",
         effort: Effort = QUICK, again: bool = False) -> Planned:
    """The recipe with the fastest plan of at most `limit_gib`, or with that for the largest micro-batch in it.

    limit_gib: none given: the recipe's, or nearly all of the device (fit.room). again: as in `survey`. The caller must
    not have used CUDA. Raises NoRoom where nothing fits at the recipe's micro-batch.
    """
    found = survey(job, effort, again=again)
    limit = room(job) if limit_gib is None else limit_gib * GIB
    if goal == "batch":
        point = choice.for_largest_batch(found.points, found.profile.standing, job.batch.micro, limit)
    else:
        point = choice.choose(found.points, limit)
    return Planned(Candidate(point.name, point.family, point.fields).recipe(job), point, found)


def survey(job: Recipe, effort: Effort = QUICK, keep: bool = True, again: bool = False,
           timeout: float = 600.0) -> Survey:
    """Every plan's point, measured in child processes, or out of the cache.

    keep: by the cache's file of this model, its shapes and hardware; else all is measured, and nothing kept. again:
    measure anew what the cache holds whole; a search that was stopped goes on. timeout: seconds for one process.
    """
    job = job.with_(**{"log.skip": 0, "graph.warmup": 3, "steps": 1000})
    if not keep:
        with tempfile.TemporaryDirectory() as folder:
            return _searched(job, effort, Path(folder) / "survey.json", timeout)
    file = cached(job, effort)
    if again and plan_trial.complete(file):
        file.unlink()
    file.parent.mkdir(parents=True, exist_ok=True)
    return _searched(job, effort, file, timeout)


def _searched(job: Recipe, effort: Effort, file: Path, timeout: float) -> Survey:
    crashes = 0
    while not plan_trial.complete(file):
        terminal = os.dup(2)  # the child's own output is kept for its last words; progress goes here
        try:
            isolated.call(plan_trial.measure, job, effort, file, terminal, timeout=timeout)
        except LfError as error:
            crashes += 1
            if not file.exists() or crashes > 3:
                raise LfError(f"the search for a plan failed: {NOTHING if KILLED in str(error) else error}") from error
            _blame(file, str(error))
        finally:
            os.close(terminal)
    return plan_trial.load(file)


def cached(job: Recipe, effort: Effort = QUICK) -> Path:
    """The cache's file of a search: its name is a hash of code, versions, hardware, shapes and effort."""
    facts = hardware.describe()["hardware"]
    content = {
        "code": compile_cache.code_hash(job.workload.use), "versions": hardware.versions(), "cpu": facts["cpu"],
        "gpus": [gpu["name"] for gpu in facts["gpus"]], "device": job.device, "effort": asdict(effort),
        "micro": job.batch.micro, "accumulate": job.batch.accumulate, "bucket_view": job.ddp.bucket_view,
        "loss_rows": job.activations.loss_rows,
        **{name: getattr(job, name).model_dump(mode="json") for name in SHAPING}}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
    return compile_cache.folder().parent / "plans" / f"{digest[:24]}.json"


def _blame(file: Path, reason: str) -> None:
    """The process died in the plan after the last one kept: note it as a point, so that the next goes on behind it."""
    content = orjson.loads(file.read_bytes())
    running = content.pop("running", None)
    if running is None:
        raise LfError(f"the search for a plan failed: {reason}")
    found, point = plan_trial.load(file), Point(**running)
    point = plan_trial.without_room(point, found.profile, f" ({HOST})") if KILLED in reason else \
        replace(point, trouble=reason)
    plan_trial.save(replace(found, points=(*found.points, point)), file)
