"""What a real training run waits for data: `vla` of size `small`, micro-batch 32, read from shards, by recipe.

`full` reads with DALI, `as_found` and `competent` as they are defined, so the share also holds what their steps cost: a
slow step hides a slow loader. That is the point, a loader is fast enough when its wait is gone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from lfhelpers.errors import LfError
from lfhelpers.launch import LaunchError, launch
from lfhelpers.measure.record import Row
from lfhelpers.recipe import Recipe, recipe

OVERRIDES = {"full": ("data.loader=dali",), "as_found": (), "competent": ()}
STEPS, SKIPPED = 80, 30


def jobs(data: Path, size: str = "small", micro: int = 32, steps: int = STEPS, skipped: int = SKIPPED
         ) -> dict[str, Recipe]:
    """The recipes to train, by name."""
    return {name: recipe(name, f"data.path={data}", f"workload.size={size}", f"batch.micro={micro}", f"steps={steps}",
                         f"log.skip={skipped}", *changes) for name, changes in OVERRIDES.items()}


def measure(recipes: dict[str, Recipe], repeats: int = 2
            ) -> Iterator[tuple[list[Row], dict[str, float], dict[str, str]]]:
    """(rows, checks `small_data_wait_*` as shares 0..1 of the step, {name: sentence} of recipes that failed).

    Runs are started one after the other, as often as `repeats` says, in turn; after each turn all so far is given.
    """
    shares: dict[str, list[float]] = {name: [] for name in recipes}
    rates: dict[str, list[float]] = {name: [] for name in recipes}
    failed: dict[str, str] = {}
    for _ in range(repeats):
        for name, job in recipes.items():
            if name in failed:
                continue
            try:
                summary = launch(job, watch=False).summary
            except (LaunchError, LfError) as error:
                failed[name] = str(error).strip().splitlines()[0]
                continue
            shares[name].append(summary["report"]["percent"]["data_wait"] / 100)
            rates[name].append(summary["samples_per_s"])
            print(f"training, {name}: {rates[name][-1]:.0f} samples/s, {shares[name][-1]:.2%} waiting for data",
                  flush=True)
        rows = [row for name in recipes for row in (
            Row.of(f"training, {name}: waiting for data", shares[name], "share"),
            Row.of(f"training, {name}", rates[name], "samples/s"))]
        checks = {f"small_data_wait_{name}": statistics.median(shares[name]) for name in recipes if shares[name]}
        yield rows, checks, {f"training, {name}": sentence for name, sentence in failed.items()}
