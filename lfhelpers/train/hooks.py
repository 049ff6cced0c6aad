"""Hook points of the loop: detectors, profilers and dashboards register here, and the loop doesn't know them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.workloads.base import Batch


class Hook:
    """Does nothing at each point; override the points you need. All ranks call all points."""

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Before the first step; the model is wrapped as it will be trained."""

    def batch_taken(self, step: int, rows: slice, host: Batch) -> None:
        """A micro-batch of a step (0-based) has come from the data engine, once; rows: its places in the global batch.

        An engine may have put it on a GPU already.
        """

    def batch_ready(self, step: int, batch: Batch, draws: Batch) -> None:
        """A micro-batch of a step (0-based) is on the device and will be used next, or one later (frozen.ahead)."""

    def gradients_ready(self, step: int, model: nn.Module) -> None:
        """After the backward passes of a step (0-based) and before its update; gradients are not yet normalised."""

    def step_end(self, step: int) -> None:
        """All of a step (0-based) is queued; the device may still work on it. Its time counts to the step after."""

    def step(self, row: dict[str, Any]) -> None:
        """A line of steps.jsonl, one or more steps after it happened (the device is not waited for)."""

    def run_end(self, summary: dict[str, Any]) -> None:
        """After the last step; what is added to the summary is written with it."""

    def close(self) -> None:
        """However the run has ended, perhaps before it started: let go of threads and files."""


def call(hooks: Sequence[Hook], point: Callable[..., None], *args: Any) -> None:
    """Call one point of all hooks, in order: `call(hooks, Hook.step, row)`."""
    for hook in hooks:
        getattr(hook, point.__name__)(*args)


class TensorBoard(Hook):
    """Scalars of each step as TensorBoard event files in the run folder."""

    _writer: Any = None

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Open the writer."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.path / "tensorboard"))

    def step(self, row: dict[str, Any]) -> None:
        """Loss, learning rate, gradient norm, step time and its parts."""
        for name in ("loss", "lr", "grad_norm", "step_ms"):
            self._writer.add_scalar(name, row[name], row["step"])
        for name, milliseconds in row["ms"].items():
            self._writer.add_scalar(f"ms/{name}", milliseconds, row["step"])

    def close(self) -> None:
        """Flush and close, also what a failed run has written so far."""
        if self._writer is not None:
            self._writer.close()
