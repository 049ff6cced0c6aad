"""The guard against steps that teach nothing: says what is not finite, and ends a run that only skips.

A step without finite gradients is skipped on the device, and nothing tells: weights stay, the scaler's scale falls to
zero, and the run goes on at full speed (insightface issue 2262). A good step costs nothing here: the verdict comes with
the step's other values when they reach the host. A bad one has then happened a few steps ago, so the guard keeps the
last batches and passes the bad one through the model again (train.nonfinite). Where that shows nothing, because the
fault lies in compiled kernels, in another rank or in a batch no longer kept, gradients are looked at as they come until
a good step. Each rank writes what it finds to nonfinite-rank-N.json and the batch beside it (train.replay runs it
alone), and the sentence that ends the run takes the earliest cause of all ranks.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train import replay
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.hooks import Hook
from lfhelpers.train.nonfinite import CAUSES, Finding, examine, in_gradients
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch, Workload

KEPT_BYTES = 128 * 2**20
KEPT_BATCHES = 16
EXAMINED = 8
"""Series of bad steps that are looked into; a run with more of them has been told enough."""
ADVICE = {
    "batch": "look at what the workload's sample() makes of these samples",
    "weights": "go back to a checkpoint from before",
    "forward": "see whether precision.mode='fp32' is free of it, which tells range from a mistake",
    "loss": "look at the workload's loss()",
    "gradient": "see whether precision.mode='fp32' or a smaller optimizer.lr is free of it",
    "scale": "take precision.mode='bf16', which needs no scale",
}


class Guard(Hook):
    """Counts skipped steps, names the cause of the first of each series, and ends the run at optimizer.max_skips."""

    def __init__(self, job: Recipe, run: Run, workload: Workload, precision: Precision, ranks: Ranks,
                 eager: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> None:
        """`eager` is the context in which nothing runs compiled (levers.compile)."""
        self._job = job
        self._run = run
        self._workload = workload
        self._precision = precision
        self._ranks = ranks
        self._eager = eager
        self._model: nn.Module | None = None
        self._kept: deque[tuple[int, Batch, Batch, int]] = deque()
        self._checked = False
        self._bad = 0
        self._findings: list[dict[str, Any]] = []
        self._finding: Finding | None = None
        self._series = 0

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Take the model without its wrapper."""
        self._model = bare(model)

    def batch_ready(self, step: int, batch: Batch, draws: Batch) -> None:
        """Keep the micro-batch; the oldest go, so that little memory is held."""
        size = sum(value.nbytes for value in (*batch.values(), *draws.values()))
        self._kept.append((step, batch, draws, size))
        while len(self._kept) > 1 and (len(self._kept) > KEPT_BATCHES or sum(k[3] for k in self._kept) > KEPT_BYTES):
            self._kept.popleft()

    def gradients_ready(self, step: int, model: nn.Module) -> None:
        """Refuse a loss that no parameter feels; after a bad step of unknown cause, look at the gradients."""
        if not self._checked:
            self._checked = True
            if all(parameter.grad is None for parameter in model.parameters()):
                raise LfError("no trained parameter got a gradient in the first step; make the workload's loss() "
                              "depend on the model's output, without detach() or no_grad().")
        if self._bad and self._finding is None:
            found = in_gradients((name, parameter.grad) for name, parameter in bare(model).named_parameters())
            self._note(step + 1, found)

    def step(self, row: dict[str, Any]) -> None:
        """Count; look into the first bad step of a series; raise LfError at the last one that is allowed."""
        if not row["skipped"] and math.isfinite(row["loss"]):
            self._bad, self._finding = 0, None
            return
        self._bad += 1
        if self._finding is None and self._series < EXAMINED:
            self._series += self._bad == 1
            self._note(row["step"], self._look(row["step"] - 1))
        if self._bad >= self._job.optimizer.max_skips:
            raise LfError(self._sentence(row))

    def _look(self, step: int) -> Finding | None:
        """The earliest cause among the kept micro-batches of a step (0-based)."""
        assert self._model is not None, "the run has not started"
        samples = self._job.batch.micro * self._job.batch.accumulate
        try:
            with self._eager():
                found = [(examine(self._workload, self._model, self._precision, batch, draws, samples), batch, draws)
                         for of, batch, draws, _ in self._kept if of == step]
        except torch.OutOfMemoryError:
            return None  # the run still fits; its gradients will be looked at instead
        causes = [(item, batch, draws) for item, batch, draws in found if item]
        if not causes:
            return None
        cause, batch, draws = min(causes, key=lambda item: item[0].place)
        if cause.cause not in ("scale", "weights"):
            replay.keep(self._run, step + 1, self._ranks.rank, batch, draws)
        return cause

    def _note(self, step: int, found: Finding | None) -> None:
        self._finding = found
        if found is None:
            return
        self._findings.append({"step": step, "cause": found.cause, "text": found.text})
        self._run.write(f"nonfinite-rank-{self._ranks.rank}.json", self._findings)
        if found.cause != "scale":  # how fp16 works, and no news
            print(f"step {step} is not finite and was skipped, because {found.text}.", flush=True)

    def _sentence(self, row: dict[str, Any]) -> str:
        first = row["step"] - self._bad + 1
        others = [self._run.read(f"nonfinite-rank-{rank}.json") or [] for rank in range(self._ranks.world)]
        found = [item for findings in others for item in findings if item["step"] >= first]
        cause = min(found, key=lambda item: CAUSES.index(item["cause"]), default=None)
        scale = f", loss scale {self._precision.scaler.get_scale():g}" if self._precision.scaler.is_enabled() else ""
        keys = ", ".join(sorted(self._kept[-1][1])) if self._kept else "unknown"
        why = f"because {cause['text']}; {ADVICE[cause['cause']]}" if cause else \
            "and the passes, run again, show no cause; try compile.scope='none' and graph.scope='none'"
        return (f"steps {first} to {row['step']} had no finite loss and gradients (loss {row['loss']:g}{scale}) and "
                f"were skipped, {why}. The batch holds {keys}; optimizer.max_skips={self._bad} in a row end a run.")
