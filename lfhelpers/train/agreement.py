"""Whether all ranks still train one model: gradients compared in the first steps, weights on request.

Ranks that stop exchanging gradients raise nothing: each goes on with a model of its own, and the loss of rank 0 looks
healthy. That has happened with accumulation under a static graph, with hooks that return the wrong tensor, with
parameters that only some ranks use. So the gradients of a run's first steps are compared, when all that goes wrong in
setting up an exchange has gone wrong, and weights every `ddp.check_every` steps. Two numbers a tensor are compared, its
sum and its norm in float64: one pass over it, and one wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lfhelpers.errors import LfError
from lfhelpers.levers import overlap
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.hooks import Hook
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch, Workload

STEPS = 3
"""Steps of a process whose gradients are compared: a static graph that is set up wrongly fails from the second on."""
CLOSE = 1e-9
"""Relative difference of sums that is none: GPUs of two kinds may add the same numbers in another order."""
SHOWN = 8
"""Names that a sentence lists."""


class Agreement(Hook):
    """Raises LfError, on every rank, where gradients or weights differ between ranks, and for what gets no gradient."""

    def __init__(self, job: Recipe, ranks: Ranks) -> None:
        self._ddp = job.ddp
        self._ranks = ranks
        self._left = STEPS if ranks.world > 1 else 0
        # There a rank has the average of its own share alone, or none, and weights are what must agree.
        self._by_weights = self._ddp.shard_optimizer or self._ddp.hook == "onebit_adam"
        self._compared = 0
        self._trained: list[tuple[str, nn.Parameter]] = []

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Take the trained parameters."""
        self._trained = [(name, parameter) for name, parameter in bare(model).named_parameters()
                         if parameter.requires_grad]

    def gradients_ready(self, step: int, model: nn.Module) -> None:
        """Compare the gradients of the first steps."""
        if not self._left:
            return
        if self._left == STEPS and not (self._ddp.find_unused or self._ddp.static_graph):
            self._all_used()
        self._left -= 1
        if not self._by_weights:
            self._compare(f"the gradients of step {step + 1}", lambda parameter: parameter.grad)

    def batch_ready(self, step: int, batch: Batch, draws: Batch) -> None:
        """Compare the weights before a step whose number `ddp.check_every` divides."""
        if self._ranks.world == 1 or step == self._compared:
            return
        every = self._ddp.check_every
        if (every and step % every == 0) or (self._by_weights and 0 < self._left < STEPS):
            self._compared = step
            self._compare(f"the weights after step {step}", lambda parameter: parameter)

    def _all_used(self) -> None:
        missing = [name for name, parameter in self._trained if parameter.grad is None]
        if missing:
            raise LfError(f"{listed(missing)} get no gradient, and DDP would wait for them for ever: set "
                          "ddp.freeze_unused=true to freeze them, or ddp.find_unused=true where it differs from batch "
                          "to batch which ones are used.")

    def _compare(self, what: str, of: Callable[[nn.Parameter], Tensor | None]) -> None:
        tensors = [(name, of(parameter)) for name, parameter in self._trained]
        differing = differences([(name, tensor) for name, tensor in tensors if tensor is not None], self._ranks)
        if differing:
            raise LfError(f"{what} differ between ranks in {len(differing)} of {len(tensors)} parameters, first in "
                          f"{differing[0]}: they were not exchanged. Set ddp.static_graph=false and no hook, and see "
                          "that every rank runs the same model and code.")


def differences(tensors: Sequence[tuple[str, Tensor]], ranks: Ranks) -> list[str]:
    """Names of the tensors that are not alike on all ranks; every rank must call it with the same names in order."""
    if ranks.world == 1 or not tensors:
        return []
    with torch.no_grad():
        mine = torch.stack([torch.stack([tensor.sum(dtype=torch.float64),
                                         torch.linalg.vector_norm(tensor, dtype=torch.float64)])
                            for _, tensor in tensors])
    everyone = [torch.empty_like(mine) for _ in range(ranks.world)]
    dist.all_gather(everyone, mine)
    alike = torch.stack([torch.isclose(other, everyone[0], rtol=CLOSE, atol=0.0, equal_nan=True).all(1)
                         for other in everyone]).all(0).tolist()
    return [name for (name, _), same in zip(tensors, alike, strict=True) if not same]


def freeze_unused(model: nn.Module, loss: Callable[[nn.Module], Tensor], ranks: Ranks) -> list[str]:
    """Name and freeze the parameters that loss(model) gives no gradient; not yet wrapped. Returns their names.

    Raises LfError where ranks find different ones: then no one may be frozen.
    """
    found = ranks.gather(overlap.unused(model, lambda: loss(model)))
    apart = sorted({name for names in found for name in names if not all(name in other for other in found)})
    if apart:
        raise LfError(f"{listed(apart)} get a gradient on some ranks and none on others, so ddp.freeze_unused can't "
                      "freeze them; set ddp.freeze_unused=false and ddp.find_unused=true.")
    numbers = overlap.freeze(model, found[0])
    if found[0] and ranks.first:
        print(f"{listed(found[0])} get no gradient from the first batch and are frozen: {numbers:,} numbers that are "
              "neither sent nor updated.", flush=True)
    return found[0]


def dry_run(workload: Workload, precision: Precision, batch: Batch, samples: int,
            device: torch.device) -> Callable[[nn.Module], Tensor]:
    """The loss of a model on a host batch of `samples` samples, with noise of its own: for `freeze_unused`."""
    there = {name: value.to(device) for name, value in batch.items()}
    draws = workload.draws(samples, torch.Generator(device).manual_seed(0))

    def loss(model: nn.Module) -> Tensor:
        with precision.autocast():
            return workload.loss(model, there, draws)[0]
    return loss


def listed(names: Sequence[str]) -> str:
    """'parameters a, b and 3 more'."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"parameter{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN])}{more}"
