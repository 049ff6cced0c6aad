"""A callback for transformers.Trainer. A step is an optimizer step, with all the batches that it accumulates.

The Trainer fetches a step's batches between two steps and tells nobody; so data wait is the time from the last thing
that it told of (the step's end, a log, an evaluation, a checkpoint) to the next step's begin.
"""

from __future__ import annotations

import contextlib
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lfhelpers.adapters.reporting import Reporting
from lfhelpers.diagnose.watched import hooked


class HuggingFaceReport(TrainerCallback, Reporting):  # type: ignore[misc]  # untyped where it isn't installed
    """Reports where the steps' time went when training ends; `report()` tells it at any time."""

    def __init__(self, skip: int = 5, show: bool = True) -> None:
        Reporting.__init__(self, skip, show)
        self._hooks = contextlib.ExitStack()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                       **kwargs: Any) -> None:
        """The model's forward sets its marks from now on."""
        self.follow(kwargs["model"])
        self._hooks.enter_context(hooked(self.watch, kwargs["model"]))

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                       **kwargs: Any) -> None:
        """What an epoch's end took belongs to no step."""
        self.restart()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                      **kwargs: Any) -> None:
        """The step's batches are there."""
        self.data_came()

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                              **kwargs: Any) -> None:
        """Backward and clipping are over."""
        self.watch.mark("backward")

    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                          **kwargs: Any) -> None:
        """The update is over."""
        self.watch.mark("optimizer")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                    **kwargs: Any) -> None:
        """The step is over."""
        self.turn(args.per_device_train_batch_size * args.gradient_accumulation_steps)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Left out, as are evaluations and checkpoints."""
        self.restart()

    on_evaluate = on_save = on_log

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                     **kwargs: Any) -> None:
        """The hooks go, and the report is printed."""
        self._hooks.close()
        self.tell()
