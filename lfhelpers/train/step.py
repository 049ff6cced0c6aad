"""One optimizer step: the only place that knows about autocast, accumulation, synchronisation and the order of it all.

For each micro-batch: forward under autocast, backward outside it. Gradients are exchanged with the last micro-batch
alone: `no_sync` covers forward *and* backward of the others, since DDP decides in forward (DistributedDataParallel's
documentation); with a static graph the run's first two exchange as well (levers.overlap.settling says why). The loss is
a ratio of sums, so the divisor is the weight of all micro-batches and ranks, known when all forwards have run; then
unscale, normalise and clip, step, zero (train.optimizer). Nothing here makes the host wait for the device, unless
`loss_item` asks for what published loops do.

`train.captured` runs the same methods inside CUDA graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lfhelpers.levers.frozen import Ahead, InTurn, Pair
from lfhelpers.levers.in_place import WRAPPED
from lfhelpers.levers.overlap import settling
from lfhelpers.measure.clock import StepClock
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.hooks import Hook, call
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch, Workload

VALUES = ("loss", "weight", "grad_norm", "skipped", "lr")
Phase = Callable[[str], AbstractContextManager[None]]


class Step:
    """Runs optimizer steps on a model that may be wrapped by DDP."""

    def __init__(self, workload: Workload, model: nn.Module, optimizer: Optimizer, precision: Precision, ranks: Ranks,
                 clock: StepClock, samples: int, hooks: Sequence[Hook] = (), loss_item: bool = False,
                 frozen_ahead: bool = False) -> None:
        """`samples` is a rank's samples a step; it only keeps the scaled loss near its usual size."""
        self.clock = clock
        self.frozen_ahead = frozen_ahead
        self.held: Pair | None = None
        """The next step's first pair, where its frozen part has been computed ahead."""
        self.adding: Any = None
        """The sum of loss and weight over the ranks, which begins after a step's last forward, until its update."""
        self._workload = workload
        self._model = model
        self._optimizer = optimizer
        self._precision = precision
        self._ranks = ranks
        self._samples = samples
        self._hooks = hooks
        self._loss_item = loss_item
        self._settling = settling(model)
        cuda = ranks.device.type == "cuda"
        self._beside = torch.cuda.Stream(ranks.device) if frozen_ahead and cuda else None

    def __call__(self, step: int, batches: Iterator[Pair], micro_batches: int) -> Tensor:
        """Step `step` (0-based) on `micro_batches` device pairs (batch, draws); returns VALUES, a float32 [5] there."""
        total, pairs = self.start(), self.pairs(batches, self.held)
        self.accumulate(pairs, total, micro_batches, self.clock.phase)
        self.ready(step)
        with self.clock.phase("optimizer"):
            values = self.update(total)
        self.held = pairs.held()
        return values

    def start(self) -> Tensor:
        """The sums of loss and weight over a step's micro-batches, float32 [2], at 0."""
        return torch.zeros(2, device=self._ranks.device)

    def pairs(self, batches: Iterator[Pair], held: Pair | None) -> Ahead | InTurn:
        """The pairs, `held` first, each with its frozen part computed ahead where the recipe asks for it."""
        return Ahead(batches, self._frozen, self._beside, held) if self.frozen_ahead else InTurn(batches)

    def accumulate(self, pairs: Ahead | InTurn, total: Tensor, micro_batches: int, phase: Phase) -> None:
        """Forward and backward of a step's micro-batches; the last one's frozen follower runs beside the update."""
        for index in range(micro_batches):
            last = index == micro_batches - 1
            self.micro_batch(next(pairs), total, last, phase, nothing if last else pairs.launch)
        pairs.launch()

    def micro_batch(self, pair: Pair, total: Tensor, last: bool, phase: Phase,
                    between: Callable[[], None], add: bool = True) -> None:
        """Forward and backward of one pair, added to `total` and to the gradients, which are exchanged after the last.

        between: called between the two. add: begin to sum `total` over the ranks after the last forward.
        """
        batch, draws = pair
        with self._synchronised(last):
            with phase("forward"), self._precision.autocast():
                loss, weight = self._workload.loss(self._model, batch, draws)
                total += torch.stack([loss.detach(), weight.detach()]).float()
            self.adding = self._ranks.add(total) if last and add else None
            between()
            with phase("backward"):
                self._precision.scaler.scale(loss / self._samples).backward()
        if self._loss_item:
            with phase("other"):
                (loss / weight).item()

    def ready(self, step: int) -> None:
        """Tell the hooks that the gradients of `step` are there."""
        call(self._hooks, Hook.gradients_ready, step, self._model)

    def update(self, total: Tensor) -> Tensor:
        """Normalise, clip, step and zero; returns VALUES, float32 [5].

        May be called again for a step in which the optimizer had no memory to begin.
        """
        self.adding = self.adding or self._ranks.add(total)
        if self.adding is not None:
            self.adding.wait()
        # DDP has averaged over the ranks: undo that and the fixed divisor, then divide by the true weight.
        weight = total[1].clamp(min=1e-6)  # a batch may be masked throughout: it then changes nothing
        normaliser = self._ranks.world * self._samples / weight
        norm, skipped, rate = self._optimizer.update(normaliser)
        self.adding = None
        return torch.stack([total[0] / weight, total[1], norm, skipped, rate])

    def _frozen(self, batch: Batch) -> Batch:
        with torch.no_grad(), self._precision.autocast():
            return self._workload.frozen(bare(self._model), batch)

    def _synchronised(self, last: bool) -> AbstractContextManager[None]:
        if last or self._settling or not isinstance(self._model, WRAPPED):
            self._settling = max(0, self._settling - 1)
            return contextlib.nullcontext()
        return self._model.no_sync()


def nothing() -> None:
    """Where nothing is launched."""
