"""Ladders whose jobs are made up: a run appears at once, with the figures that its recipe stands for."""

from __future__ import annotations

from collections.abc import Callable

from lfhelpers import runs
from lfhelpers.bench.climb import Ladder, Options
from lfhelpers.bench.jobs import Jobs
from lfhelpers.levers.table import Machine
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run

LAPTOP = Machine("cpu", ranks=1)
TEN = Options(steps=10)
SPEED = {"data.loader": ("as_found", 3.0), "optimizer.fused": (False, 1.5), "log.loss_item": (True, 1.2),
         "compile.scope": ("none", 2.0)}
"""What a step takes longer by, where a field has this value: 10 ms times all that hold."""


def step_ms(job: Recipe) -> float:
    fields = job.flat()
    product = 10.0
    for name, (value, factor) in SPEED.items():
        product *= factor if fields[name] == value else 1.0
    return product


def written(job: Recipe, losses: Callable[[Recipe, int], float]) -> Run:
    run, step = runs.create(job), step_ms(job)
    wait = 20.0 if job.data.loader == "as_found" else 0.5
    parts = {"data_wait": wait, "host_to_device": 0.0, "forward": (100 - wait) / 2, "backward": (100 - wait) / 2,
             "communication": 0.0, "optimizer": 0.0, "captured": 0.0, "other": 0.0}
    run.append_steps([{"step": number, "loss": losses(job, number), "probe": False}
                      for number in range(1, job.steps + 1)])
    run.write("summary.json", {
        "device": "cpu", "hardware": "a toy", "ranks": 1, "host_ms": step,
        "samples_per_s": 1e3 * job.batch.micro / step, "ranks_ms": {},
        "step_ms": {"median": step, "mean": step, "p95": step}, "steps": {"timed": job.steps},
        "mfu": {"value": 0.3, "convention": "made up", "peak_tflops": 1.0}, "memory": {"peak_gib": None},
        "utilisation": {"gpu_percent": 97.0, "gpu_watts": 400.0},
        "report": {"percent": parts, "ms": {part: share * step / 100 for part, share in parts.items()}}})
    run.set_status("done")
    return run


def climbed(options: Options = TEN, where: Machine = LAPTOP) -> Ladder:
    ladder = Ladder(options, Jobs.of("ladder", options), where)
    ladder.climb()
    return ladder
