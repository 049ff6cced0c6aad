"""`lfhelpers bench hooks`: what each way to exchange gradients sends, takes and does to what is learnt, over seeds.

A hook that compresses changes results, so it answers to the test of the `changed` gate: two one-sided tests on the
final loss over paired seeds, against a margin that stands here, before any run. The control is tested beside them: no
hook can be shown to be nearer to `none` than rounding alone is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lfhelpers.bench import hooks
from lfhelpers.bench.base import demonstrations
from lfhelpers.bench.hooks import BASIS, CONTROL, HookRow
from lfhelpers.launch.prepare import DEFAULT_SAMPLES
from lfhelpers.measure import hardware
from lfhelpers.measure.record import Record, Row
from lfhelpers.quality.equivalence import LEAST, Equivalence, tost
from lfhelpers.recipe import Recipe, recipe

NAMES = (CONTROL, "bf16", "powersgd", "onebit_adam", "sharded")
TASK = "colour"
"""What the demonstrations show: an object named by its colour among others."""
MARGIN = 0.01
"""Largest difference of the final loss that counts as none, as a share of the loss without a hook."""


def job_of(overrides: Sequence[str] = ()) -> Recipe:
    """What is trained: `competent`, on GPUs at `small`, on a CPU at `tiny`."""
    place = ("workload.size=small", "batch.micro=32") if hardware.device()[0] == "cuda" else (
        "workload.size=tiny", "batch.micro=4", "device=cpu")
    return recipe("competent", *place, *overrides)


def run(names: Sequence[str] = NAMES, seeds: int = 5, steps: int = 200, ranks: int = 2, job: Recipe | None = None,
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Train with each of hooks.VARIANTS by name, once a seed, all over the same batches.

    Where the recipe names no data it is as many demonstrations as the steps need: repeated ones would be learnt by
    heart, and of a loss near nothing any rounding is a large share.

    keep: is given the record so far after each seed. Raises LfError as hooks.compare does.
    """
    job = job or job_of()
    needed = steps * ranks * job.batch.micro * job.batch.accumulate
    if job.data.path is None and job.workload.use == "vla" and needed > DEFAULT_SAMPLES:
        job = job.with_(**{"data.path": str(demonstrations(TASK, needed))})
    settings = {"ranks": ranks, "steps": steps, "margin": MARGIN, "recipe": job.to_toml(),
                "loss": f"mean of the last {hooks.TAIL:.0%} of the steps; `run`: of all of them"}
    found: dict[str, list[HookRow]] = {}
    for place in range(seeds):
        for row in hooks.compare(names, steps, job.with_(seed=job.seed + place), ranks):
            found.setdefault(row.name, []).append(row)
        record = _record(found, settings | {"seeds": [job.seed + each for each in range(place + 1)]})
        print(f"seed {job.seed + place}: loss over {BASIS}, " + ", ".join(
            f"{name} {rows[-1].loss_over_none:.4f}" for name, rows in found.items() if name != BASIS), flush=True)
        keep(record)
    return record


def verdicts(record: Record) -> dict[str, Equivalence]:
    """The test of each hook by its name, as a record holds it."""
    return {name: Equivalence(**told) for name, told in record.settings["equivalence"].items()}


def _record(found: Mapping[str, Sequence[HookRow]], settings: dict[str, Any]) -> Record:
    rows = [Row.of(name, values, unit) for name, seen in found.items() for values, unit in (
        ([row.loss for row in seen], "loss"), ([row.bytes_per_step / 1e6 for row in seen], "MB a step"),
        ([row.step_ms for row in seen], "ms"), ([row.loss_over_none for row in seen], f"x the loss of {BASIS}"),
        ([row.run_over_none for row in seen], f"x the loss of {BASIS}, all steps"))]
    basis = [row.loss for row in found[BASIS]]
    tests: dict[str, dict[str, Any]] = {}
    checks: dict[str, float] = {}
    for name, seen in found.items():
        if name != BASIS:
            checks[f"{name}_loss_off"] = max(abs(row.loss_over_none - 1) for row in seen)
            checks[f"{name}_run_off"] = max(abs(row.run_over_none - 1) for row in seen)
            if len(seen) >= LEAST:
                tested = tost(basis, [row.loss for row in seen], MARGIN * statistics.fmean(basis))
                checks[f"{name}_tost_p"], tests[name] = tested.p, vars(tested)
    return Record("hooks", settings | {"equivalence": tests}, rows, checks, 0.0)
