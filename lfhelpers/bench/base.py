"""`lfhelpers bench base`: a base from nothing, and recipes that fine-tune from it: does the workload truly learn?

The base is made anew and timed. Then the recipe `competent` starts from it on a task that it has not seen, through the
real shards and loader, once a seed, and success is measured before, on the way and after. The seeds' spread is what
chance alone does to a figure, so no recipe may be called worse by less.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lfhelpers.errors import LfError
from lfhelpers.launch import launch
from lfhelpers.launch.prepare import make_tabletop
from lfhelpers.measure import hardware
from lfhelpers.measure.record import Record, Row
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import root
from lfhelpers.train.base.recipe import BaseRecipe, load
from lfhelpers.workloads.vla import pretrained

PARTS = ("make", "finetune")
FIGURES = {"success": "share", "action_mse": "mse", "question_accuracy": "share", "bleu4": "share", "cider": "of 10"}


@dataclass(frozen=True)
class Options:
    """What to measure."""

    name: str = "small"
    parts: tuple[str, ...] = PARTS
    again: bool = True
    """Make the base anew, also where there is one."""
    seeds: int = 3
    steps: int = 1000
    micro: int = 64
    samples: int = 8192
    """Demonstrations of the task that is fine-tuned on."""
    every: int = 250
    """Steps between the points of its learning curve."""
    overrides: tuple[str, ...] = ()
    """Of the fine-tuned recipe."""
    base_overrides: tuple[str, ...] = ()


def run(options: Options, keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure the parts; keep: is given the record so far after each base and each fine-tuned seed."""
    for part in options.parts:
        if part not in PARTS:
            raise LfError(f"--part {part}: take {' or '.join(PARTS)}.")
    base = load(options.name, *options.base_overrides)
    settings: dict[str, Any] = {
        "base": base.model_dump(mode="json"), "finetune": {"task": base.finetune, "steps": options.steps,
                                                           "micro": options.micro, "samples": options.samples,
                                                           "overrides": list(options.overrides)},
        "curves": {}, "spread": {}, "failed": {}}
    record = Record("base", settings, [], {}, 0.0)
    if "make" in options.parts:
        again = ("--again",) if options.again else ()
        record = _with_base(record, pretrained.card(made(base, options.name, *again, *_sets(options))))
        keep(record)
    if "finetune" in options.parts:
        job = _job(options, base)
        for seed in range(options.seeds):
            record = _with_run(record, launch(job.with_(seed=seed)).summary, seed)
            keep(record)
    return record


def made(base: BaseRecipe, *words: str) -> Path:
    """The folder of the base, made by `lfhelpers base make WORDS`: in a process whose progress is seen here.

    Short of its targets it is a base all the same. Raises LfError where it was not made.
    """
    code = subprocess.run([sys.executable, "-m", "lfhelpers", "base", "make", *words], stdin=subprocess.DEVNULL)
    if code.returncode not in (0, 1):
        raise LfError(f"the base {base.name} was not made; the reason stands above.")
    return base.folder


def _sets(options: Options) -> list[str]:
    return [word for change in options.base_overrides for word in ("--set", change)]


def _with_base(record: Record, about: dict[str, Any]) -> Record:
    figures = about["figures"]
    rows = [Row.of(f"base {name}", [figures[name]], unit) for name, unit in FIGURES.items() if name in figures]
    checks = {"minutes_to_base": about["seconds"] / 60} | {
        check: figures[name] for check, name in (("question_accuracy", "question_accuracy"), ("bleu4", "bleu4"),
                                                 ("success_base", "success"), ("success_blind", "success_blind"))
        if name in figures}
    curves = record.settings["curves"] | {"base": [about["curve"]]}
    return replace(record, settings=record.settings | {"curves": curves, "figures": figures},
                   rows=[*record.rows, Row.of("base made in", [about["seconds"] / 60], "min"), *rows],
                   checks=record.checks | checks)


def _job(options: Options, base: BaseRecipe) -> Recipe:
    """`competent` from the base, on demonstrations of the new task, which are rendered where they aren't there yet."""
    data = demonstrations(base.finetune, options.samples)
    job = recipe("competent", **{
        "workload.size": base.size, "workload.base": str(base.folder), "data.path": str(data), "steps": options.steps,
        "batch.micro": options.micro, "log.probe": False, "evaluate.task": base.finetune, "evaluate.samples": 100,
        "evaluate.episodes": base.episodes, "evaluate.every": options.every})
    return job.with_(*options.overrides)


def demonstrations(task: str, samples: int) -> Path:
    """A folder of shards with a task's demonstrations, which are rendered where they aren't there yet."""
    folder = root() / "data" / f"tabletop-{task}-{samples}"
    if not (folder / "manifest.json").exists():
        print(f"rendering {samples} demonstrations of the task '{task}' into {folder}, once", flush=True)
        subprocess.run([sys.executable, "-c", _RENDER, str(folder), str(samples), task], check=True,
                       stdin=subprocess.DEVNULL)
    return folder


_RENDER = ("import sys, pathlib; from lfhelpers.bench.base import render\n"
           "if __name__ == '__main__': render(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])")


def render(folder: Path, samples: int, task: str) -> None:
    """Shards of a task's demonstrations, by all cores."""
    make_tabletop(folder, samples, shard_mb=64, jobs=hardware.usable_cores(), distractors=task)


def _with_run(record: Record, summary: dict[str, Any], seed: int) -> Record:
    """The record with one more fine-tuned seed; figures are medians over the seeds so far."""
    quality = summary["quality"]
    curve = [quality["before"] | {"step": 0, "samples": 0, "seconds": 0.0}, *quality["curve"]]
    curves = record.settings["curves"] | {"finetune": [*record.settings["curves"].get("finetune", []), curve]}
    last = [points[-1] for points in curves["finetune"]]
    minutes = [point["seconds"] / 60 for point in last]
    old = [row for row in record.rows if not row.name.startswith("finetune")]
    rows = [Row.of(f"finetune {name}", [point[name] for point in last], unit) for name, unit in FIGURES.items()
            if name in last[0]]
    rows.append(Row.of("finetune, a measurement", [point["measuring"] for points in curves["finetune"]
                                                   for point in points[1:]], "s"))
    checks = {"finetune_from": float(np.median([points[0]["success"] for points in curves["finetune"]])),
              "finetune_to": float(np.median([point["success"] for point in last])),
              "finetune_minutes": float(np.median(minutes))}
    print(f"seed {seed}: success {curve[0]['success']:.2f} to {last[-1]['success']:.2f} in {minutes[-1]:.1f} minutes, "
          f"at {time.strftime('%H:%M:%S')}", flush=True)
    return replace(record, settings=record.settings | {"curves": curves, "spread": spread(last)},
                   rows=[*old, Row.of("finetune minutes", minutes, "min"), *rows], checks=record.checks | checks)


def spread(last: Sequence[dict[str, float]]) -> dict[str, float]:
    """Standard deviation of each figure over seeds, from which the gates' margins come; nothing of a single seed."""
    return {name: float(np.std([point[name] for point in last], ddof=1)) for name in FIGURES
            if len(last) > 1 and name in last[0]}
