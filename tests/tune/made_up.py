"""Studies whose jobs are made up: a run appears at once, with the rate and the losses that its recipe stands for."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from unittest import mock

import numpy as np

from lfhelpers import runs
from lfhelpers.levers.table import Machine
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.tune.options import Options
from lfhelpers.tune.search import Search
from lfhelpers.tune.trial import Outcome, judged

LAPTOP = Machine("cpu", ranks=1)
KNOBS = ("loader", "workers", "compile", "packed frozen weights", "micro-batch")
FASTER = {"data.loader": ("threads", 1.5), "compile.scope": ("blocks", 2.0), "frozen.packed": (True, 1.1)}
"""By how much a job is faster where a field has this value: 100 samples/s times all that hold."""
Failing = Callable[[Recipe], Outcome | None]
Losing = Callable[[Recipe, int], float]


def rate(job: Recipe) -> float:
    """samples/s of a recipe."""
    fields = job.flat()
    factors = [factor for name, (value, factor) in FASTER.items() if fields[name] == value]
    return float(100 * np.prod(factors))


def written(job: Recipe, losses: Losing, samples_per_s: float | None = None) -> Run:
    """A finished run, every step with the rate of its recipe and a little of its own."""
    run, speed = runs.create(job), rate(job) if samples_per_s is None else samples_per_s
    samples = job.batch.micro * job.batch.accumulate
    noise = np.random.default_rng(zlib.crc32(job.name.encode())).normal(1, 1e-3, job.steps)
    run.append_steps([{"step": number, "loss": losses(job, number), "probe": number == job.steps, "skipped": False,
                       "samples": samples, "step_ms": 1e3 * samples / (speed or 1.0) * float(noise[number - 1])}
                      for number in range(1, job.steps + 1)])
    run.write("summary.json", {"samples_per_s": speed, "memory": {"peak_gib": None, "reserved_gib": None}})
    run.set_status("done")
    return run


class Jobs:
    """Stands for trial.execute: makes a run of each recipe, or the failure that `failing` says; `started` lists them.
    """

    def __init__(self, losses: Losing = lambda job, step: 1 / step, failing: Failing = lambda job: None) -> None:
        self.losses, self.failing = losses, failing
        self.started: list[Recipe] = []

    def __call__(self, job: Recipe, nproc: int, limit_s: float, slower: Callable[[Run], bool]) -> Outcome:
        self.started.append(job)
        if (failure := self.failing(job)) is not None:
            return failure
        run = written(job, self.losses)
        return Outcome("slower", "", run) if slower(run) else judged(run)


def search(name: str, trials: int, jobs: Jobs, base: str = "competent", where: Machine = LAPTOP,
           **options: object) -> Search:
    """A study over KNOBS, from a named recipe, of made-up jobs; its space is that of two cores on any machine."""
    options = {"knobs": KNOBS, "steps": 16} | options
    with mock.patch.object(hardware, "usable_cores", lambda: 2):
        return Search(Options(name, trials, **options), recipe(base), where, execute=jobs)  # type: ignore[arg-type]
