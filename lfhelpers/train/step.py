"""One optimizer step: the only place that knows about autocast, accumulation, synchronisation and the order of it all.

For each micro-batch: forward under autocast, backward outside it. Gradients are exchanged with the last micro-batch
alone: `no_sync` covers forward *and* backward of the others, since DDP decides in forward (DistributedDataParallel's
documentation). The loss is a ratio of sums, so the divisor is the weight of all micro-batches and ranks, known when all
forwards have run; then unscale, normalise and clip, step, zero (train.optimizer). Nothing here makes the host wait for
the device, unless `loss_item` asks for what published loops do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.measure.clock import StepClock
from lfhelpers.train.hooks import Hook, call
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch, Workload

VALUES = ("loss", "weight", "grad_norm", "skipped", "lr")


class Step:
    """Runs optimizer steps on a model that may be wrapped by DDP."""

    def __init__(self, workload: Workload, model: nn.Module, optimizer: Optimizer, precision: Precision, ranks: Ranks,
                 clock: StepClock, samples: int, hooks: Sequence[Hook] = (), loss_item: bool = False) -> None:
        """`samples` is a rank's samples a step; it only keeps the scaled loss near its usual size."""
        self._workload = workload
        self._model = model
        self._optimizer = optimizer
        self._precision = precision
        self._ranks = ranks
        self._clock = clock
        self._samples = samples
        self._hooks = hooks
        self._loss_item = loss_item

    def __call__(self, step: int, batches: Iterator[tuple[Batch, Batch]], micro_batches: int) -> Tensor:
        """Step `step` (0-based) on `micro_batches` device pairs (batch, draws); returns VALUES, a float32 [5] there."""
        total = torch.zeros(2, device=self._ranks.device)
        for index in range(micro_batches):
            batch, draws = next(batches)
            last = index == micro_batches - 1
            with self._synchronised(last):
                with self._clock.phase("forward"), self._precision.autocast():
                    loss, weight = self._workload.loss(self._model, batch, draws)
                    total += torch.stack([loss.detach(), weight.detach()]).float()
                adding = self._ranks.add(total) if last else None
                with self._clock.phase("backward"):
                    self._precision.scaler.scale(loss / self._samples).backward()
            if self._loss_item:
                with self._clock.phase("other"):
                    (loss / weight).item()
        call(self._hooks, Hook.gradients_ready, step, self._model)
        with self._clock.phase("optimizer"):
            if adding is not None:
                adding.wait()
            # DDP has averaged over the ranks: undo that and the fixed divisor, then divide by the true weight.
            weight = total[1].clamp(min=1e-6)  # a batch may be masked throughout: it then changes nothing
            normaliser = self._ranks.world * self._samples / weight
            norm, skipped, rate = self._optimizer.update(normaliser)
            return torch.stack([total[0] / weight, total[1], norm, skipped, rate])

    def _synchronised(self, last: bool) -> AbstractContextManager[None]:
        if last or not isinstance(self._model, DistributedDataParallel):
            return contextlib.nullcontext()
        return self._model.no_sync()
