"""A step that runs out of memory is made again, smaller: the same samples in more, smaller micro-batches, on all ranks.

Before a step is applied, all ranks say whether they had room for it; if one had not, none applies it. Gradients are
dropped, each micro-batch of the step is cut in two, and the step is made again, with the same samples, noise and
divisor: the loss is a ratio of sums, so only the order of additions changes (gate `reordered`). Weights and states are
those of the last good step, since no update has begun. When single samples don't fit either, blocks recompute.

A rank that fails leaves others inside the gradient exchange. It goes on to do its part there, with whatever gradients
it has, because they are going to be dropped: then no rank hangs and no communicator has to be made anew. That a step
failed is known on the host, where memory is asked for; so the ranks' hosts tell each other over gloo, a few bytes a
step beside a device that works on: nothing is read from it. The price of being ready: that message, the step's batches
held on the device until it is applied, and ranks whose hosts can't run ahead of each other.

Not undone: the order of random numbers (dropout draws new masks when a step is made again), and recomputation. Larger
micro-batches are tried again when steps have had room for a while: whether head-room has grown no counter says (what a
larger step would take, and in which pieces memory is free), and a try that fails costs one attempt at a step, which is
then made again like any other; each such failure doubles the wait. A resumed run begins with the recipe's own.

DDP's join hook shadows the exchange in the same way for ranks without data (torch.distributed.algorithms.join).
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.errors import LfError
from lfhelpers.levers import activations
from lfhelpers.levers.frozen import Ahead, InTurn
from lfhelpers.recipe import Recipe
from lfhelpers.train.cuts import Cuts
from lfhelpers.train.hooks import Hook
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.step import Step

WAIT = 100
"""Steps with room after which micro-batches twice as large are tried; doubled where they still don't fit."""
TWICE = "mark a variable ready only once"
"""How DDP refuses a gradient that it has been given already in this backward pass."""


class Replan(Hook):
    """Calls like `Step`, on pairs that are `Cuts`; as a hook it tells the summary what was re-planned."""

    def __init__(self, step: Step, job: Recipe, model: nn.Module, optimizer: Optimizer, ranks: Ranks,
                 recompute: Callable[[], bool] = lambda: False) -> None:
        """Every rank must make it. recompute: makes the model save less, alike on all ranks; False where it can't."""
        self._step = step
        self._job = job
        self._model = model
        self._optimizer = optimizer
        self._ranks = ranks
        self._recompute = recompute
        self._group = dist.new_group(backend="gloo") if ranks.world > 1 else None
        self._wait = WAIT
        self._due = math.inf
        """The 0-based step in which larger micro-batches are tried, on all ranks."""
        self.events: list[dict[str, Any]] = []
        """What was re-planned: step, the ranks that had no room (none where it grew), why, and what was done."""

    def __call__(self, step: int, batches: Cuts, micro_batches: int) -> Tensor:
        """Step `step` (0-based) on `micro_batches` of the source's pairs; returns step.VALUES, float32 [5].

        Raises LfError on every rank where single samples, recomputed, don't fit either.
        """
        ours, growing = self._step, self._grow(step, batches)
        while True:
            total, pairs = ours.start(), ours.pairs(batches, ours.held)
            reason = self._attempt(pairs, total, batches, micro_batches)
            short = self._short(reason)
            if not short:
                break
            del pairs
            self._replan(step, batches, short, self._ranks.gather(reason))
            self._wait *= 1 + growing
            self._due, growing = step + self._wait, False
        if growing:
            self._grew(step, batches)
        batches.done(micro_batches)
        ours.ready(step)
        with ours.clock.phase("optimizer"):
            values = self._update(total)
        ours.held = pairs.held()
        return values

    def run_end(self, summary: dict[str, Any]) -> None:
        """`replan`: the events, and that the effective batch is what the recipe says."""
        samples = self._ranks.world * self._job.batch.micro * self._job.batch.accumulate
        summary["replan"] = {"events": self.events, "effective_batch": samples}

    def _grow(self, step: int, batches: Cuts) -> bool:
        """Whether this step is due to try micro-batches twice as large; it then begins with them."""
        if step < self._due or batches.pieces == 1:
            return False
        self._step.held = None  # it has the size of before
        batches.again(batches.pieces // 2)
        return True

    def _grew(self, step: int, batches: Cuts) -> None:
        """There was room: stay with it."""
        self._due = step + self._wait
        size = -(-self._job.batch.micro // batches.pieces)
        self.events.append({"step": step + 1, "ranks": [], "why": f"{self._wait} steps had room", "micro": size,
                            "done": f"micro-batches of {size} again"})
        if self._ranks.first:
            print(f"step {step + 1} had room for larger micro-batches: of {size} again, same effective batch.",
                  flush=True)

    def _attempt(self, pairs: Ahead | InTurn, total: Tensor, batches: Cuts, micro_batches: int) -> str:
        """Forward and backward of the whole step; says why it had no room, "" if it had."""
        reason = ""
        try:
            self._step.accumulate(pairs, total, micro_batches * batches.pieces, self._step.clock.phase)
        except torch.OutOfMemoryError as error:
            reason = str(error).partition("\n")[0]
        if reason:  # outside of the handler, whose traceback holds the activations
            free()
            self._take_part(total)
            batches.fill(micro_batches + self._step.frozen_ahead)  # hooks are told of batches on all ranks alike
        return reason

    def _take_part(self, total: Tensor) -> None:
        """Do what is left of this rank's part in the step's exchanges, in the order of the others."""
        model = self._model
        if not isinstance(model, DistributedDataParallel):
            return
        if self._step.adding is None:  # the last forward did not come to its end: as DDP.forward does around it
            model._has_rebuilt_buckets |= model.reducer._rebuild_buckets()
            self._step.adding = self._ranks.add(total)
            model.reducer.prepare_for_backward([])
        for parameter in model.parameters():
            if parameter.requires_grad:
                _give_zeros(parameter)

    def _short(self, reason: str) -> list[int]:
        """Ranks that had no room in this step; all ranks get the same answer."""
        mine = torch.zeros(self._ranks.world, dtype=torch.int32)
        mine[self._ranks.rank] = bool(reason)
        if self._group is not None:
            dist.all_reduce(mine, group=self._group)
        return [int(rank) for rank in mine.nonzero().flatten()]

    def _replan(self, step: int, batches: Cuts, short: Sequence[int], reasons: Sequence[str]) -> None:
        """Drop what the step has left behind, and make it smaller."""
        if self._step.adding is not None:
            self._step.adding.wait()
        self._step.adding = self._step.held = None
        self._optimizer.drop()
        model, micro = self._model, self._job.batch.micro
        if isinstance(model, DistributedDataParallel) and not model._has_rebuilt_buckets:
            model.reducer._reset_state()  # it has noted the order of gradients for its buckets, and noted it wrongly
        if batches.pieces < micro:
            batches.again(min(2 * batches.pieces, micro))
            done = f"{batches.pieces} micro-batches of {-(-micro // batches.pieces)} for each of {micro}"
        elif self._recompute():
            batches.again(batches.pieces)
            done = "blocks recompute"
        else:
            raise LfError(f"step {step + 1} does not fit even one sample at a time: {reasons[short[0]]} Take a smaller "
                          "model, activations.plan='all', or more memory (batch.limit_gib).")
        self.events.append({"step": step + 1, "ranks": list(short), "why": reasons[short[0]], "done": done,
                            "micro": -(-micro // batches.pieces)})
        if self._ranks.first:
            print(f"step {step + 1} did not fit on rank {', '.join(map(str, short))} ({reasons[short[0]]}); it is made "
                  f"again on all ranks with the same samples and effective batch: {done}.", flush=True)

    def _update(self, total: Tensor) -> Tensor:
        """The update; once more where it found no memory to begin with.

        A fused update takes memory for new states and the norm, and then none: so it has not begun, and what is missing
        was taken by activations, which are gone. In fp16 the gradients are unscaled by then, and the run ends.
        """
        states = self._optimizer.adamw.state
        before = len(states)
        try:
            return self._step.update(total)
        except torch.OutOfMemoryError:
            if self._job.precision.mode == "fp16":
                raise
        for parameter in list(states)[before:]:
            del states[parameter]  # one of them may be half made
        free()
        return self._step.update(total)


def recomputation(job: Recipe, blocks: Sequence[nn.Module], ranks: Ranks) -> Callable[[], bool]:
    """For `Replan`: makes all blocks recompute, once; only what runs eagerly and without a plan can be changed."""
    left = [job.activations.plan == "none" and job.compile.scope == "none" and bool(blocks)]

    def recompute() -> bool:
        possible, left[0] = left[0], False
        with contextlib.suppress(LfError):  # a block that can't
            if possible:
                activations.apply(job.with_(**{"activations.plan": "all"}), blocks, ranks.device, ranks.world)
                return True
        return False
    return recompute


def free() -> None:
    """Give back to the device what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _give_zeros(parameter: nn.Parameter) -> None:
    """Let DDP have this parameter's gradient, if it has not in this backward pass; takes no memory for it."""
    zeros = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand_as(parameter)
    try:
        torch.autograd.backward(parameter, zeros)
    except RuntimeError as error:
        if TWICE not in str(error):
            raise
