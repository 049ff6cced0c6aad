"""Quality on held-out data inside a run: at its ends, and every so many steps where a learning curve is wanted.

All ranks take part where the workload can share the work out; else rank 0 does it alone and the others wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from lfhelpers.recipe import EvaluateFields, Recipe
from lfhelpers.runs import Run
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.hooks import Hook
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Judging, Workload


def quality(asked: EvaluateFields, workload: Workload, model: nn.Module, ranks: Ranks, precision: Precision,
            eager: AbstractContextManager[Any]) -> dict[str, float]:
    """The workload's figures of the bare model, in eval mode, where the recipe asks for any."""
    if not (asked.samples or asked.episodes or asked.words):
        return {}
    training = model.training
    model.eval()
    with torch.no_grad(), precision.autocast(), eager:
        if isinstance(workload, Judging):
            shares = ranks.gather(workload.judged(model, asked.samples, ranks.device, ranks.rank, ranks.world))
            found = workload.verdict(shares)
        else:
            found = workload.evaluate(model, asked.samples, ranks.device) if ranks.first and asked.samples else {}
            ranks.barrier()
    model.train(training)
    return found


class Curve(Hook):
    """Measures quality every evaluate.every steps; the summary's quality then has a "curve".

    Its rows are step, samples, seconds, figures, and `measuring`: the seconds of the measurement itself, which are not
    counted among the others.
    """

    def __init__(self, workload: Workload, ranks: Ranks, eager: Callable[[], AbstractContextManager[Any]]) -> None:
        self.workload, self.ranks, self.eager = workload, ranks, eager
        self.points: list[dict[str, float]] = []

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """The clock starts with the first step."""
        self._job, self._model, self._paused = job, model, 0.0
        self._precision = Precision(job.precision, self.ranks.device)
        self._began = time.perf_counter()

    def step_end(self, step: int) -> None:
        """Measure after every so many steps."""
        if (step + 1) % self._job.evaluate.every:
            return
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize()
        before = time.perf_counter()
        found = quality(self._job.evaluate, self.workload, bare(self._model), self.ranks, self._precision, self.eager())
        samples = (step + 1) * self._job.batch.micro * self._job.batch.accumulate * self.ranks.world
        seconds = before - self._began - self._paused
        measuring = time.perf_counter() - before
        self.points.append(found | {"step": step + 1, "samples": samples, "seconds": seconds, "measuring": measuring})
        self._paused += measuring

    def run_end(self, summary: dict[str, Any]) -> None:
        """Into the summary."""
        summary["quality"]["curve"] = self.points
