"""A callback for Lightning's Trainer. A step is a batch.

Forward and backward run inside the optimizer's step there, as its closure, so the marks come from Lightning's own
hooks. Batches are moved to the device before the first of them: copies count as data wait.
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # the same under its old name
    from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]

from torch import Tensor

from lfhelpers.adapters.reporting import Reporting
from lfhelpers.diagnose.watched import samples_of


class LightningReport(Callback, Reporting):  # type: ignore[misc]  # untyped where it isn't installed
    """Reports where the steps' time went when training ends; `report()` tells it at any time."""

    def __init__(self, skip: int = 5, show: bool = True) -> None:
        Reporting.__init__(self, skip, show)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The model is on its device."""
        self.follow(pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What an epoch's end took belongs to no step."""
        self.restart()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The batch is there."""
        self.data_came()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Forward, with the loss, is over."""
        self.watch.mark("forward")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Backward is over."""
        self.watch.mark("backward")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        """The update, and the step, are over."""
        self.watch.mark("optimizer")
        self.turn(samples_of(batch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Left out, with what it took."""
        if self._watch is not None:  # else it is the check before training
            self.restart()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The report is printed."""
        self.tell()
