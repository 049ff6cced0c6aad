"""A training step whose kernels are replayed from a CUDA graph: the same methods of train.step, recorded once.

Scope `step` records everything from the first forward to the zeroed gradients: one launch a step, and gradients live in
the graph's own memory. Scope `micro` records one micro-batch's forward and backward, which add to gradients outside the
pool, and leaves the update ordinary: less memory with many micro-batches, and gradients that hooks can look at. Draws
and batches are made outside and copied in. While a graph is recorded the clock is left alone: an event that became part
of a graph can't be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from lfhelpers.levers.frozen import Pair
from lfhelpers.levers.graphs import DDP_WARMUP, Graphs, Recorded, Tensors
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import Recipe
from lfhelpers.train.hooks import Hook
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.step import Step, nothing
from lfhelpers.workloads.base import Workload


class CapturedStep:
    """Calls like `Step`: ordinary steps until the graph has been recorded, and where it can't be."""

    def __init__(self, step: Step, scope: Literal["micro", "step"], warmup: int,
                 record: Callable[..., Recorded] | None = None) -> None:
        """warmup: ordinary steps before recording. record: levers.graphs.on_cuda where none is given."""
        self._step = step
        self._scope = scope
        self._following: Pair | None = None
        self._total = step.start()  # what a micro-batch's graph adds to must stay where it is
        self.graphs = Graphs(self._whole if scope == "step" else self._micro_batch, warmup, record)

    def __call__(self, step: int, batches: Iterator[Pair], micro_batches: int) -> Tensor:
        """Step `step` on `micro_batches` device pairs; returns step.VALUES, float32 [5], valid until the next call."""
        if self._scope == "micro":
            return self._by_micro_batch(step, batches, micro_batches)
        held = self._step.held
        taken = [next(batches) for _ in range(micro_batches - (held is not None))]
        following = next(batches, None) if self._step.frozen_ahead else None
        self._following = following or self._following  # after the last step the frozen part runs once more, for nobody
        pairs = [*([held] if held else []), *taken, *([self._following] if self._following else [])]
        inputs = _flat(pairs)
        if not self.graphs.ready(inputs, micro_batches):
            return self._step(step, iter([*taken, *([following] if following else [])]), micro_batches)
        with self._step.clock.phase("captured"):
            outputs = dict(self.graphs(inputs, micro_batches))
        values = outputs.pop("values")
        self._step.held = (outputs, following[1]) if following else None
        return values

    def _whole(self, inputs: Tensors, micro_batches: int) -> Tensors:
        """A step from its first forward to its zeroed gradients: VALUES, and the following batch's frozen part."""
        given = _pairs(inputs)
        held, rest = (given[0], given[1:]) if self._step.frozen_ahead else (None, given)
        total, pairs = self._step.start(), self._step.pairs(iter(rest), held)
        self._step.accumulate(pairs, total, micro_batches, _untimed)
        values = self._step.update(total)
        ahead = pairs.held()
        return {"values": values} | (ahead[0] if ahead else {})

    def _by_micro_batch(self, step: int, batches: Iterator[Pair], micro_batches: int) -> Tensor:
        ours, clock = self._step, self._step.clock
        pairs = ours.pairs(batches, ours.held)
        self._total.zero_()
        for index in range(micro_batches):
            last, pair = index == micro_batches - 1, next(pairs)
            if not last:
                pairs.launch()
            if self.graphs.ready(inputs := _flat([pair]), last):
                with clock.phase("captured"):
                    self.graphs(inputs, last)
            else:
                ours.micro_batch(pair, self._total, last, clock.phase, nothing, add=False)
        pairs.launch()
        ours.ready(step)
        with clock.phase("optimizer"):
            values = ours.update(self._total)
        ours.held = pairs.held()
        return values

    def _micro_batch(self, inputs: Tensors, last: bool) -> Tensors:
        self._step.micro_batch(_pairs(inputs)[0], self._total, last, _untimed, nothing, add=False)
        return {}


def make_step(job: Recipe, workload: Workload, model: nn.Module, optimizer: Optimizer, precision: Precision,
              ranks: Ranks, clock: StepClock, hooks: Sequence[Hook] = ()) -> Step | CapturedStep:
    """The step that the recipe asks for; on a CPU, which records nothing, an ordinary one."""
    step = Step(workload, model, optimizer, precision, ranks, clock, job.batch.micro * job.batch.accumulate, hooks,
                job.log.loss_item, job.frozen.ahead)
    if job.graph.scope == "none" or ranks.device.type != "cuda":
        return step
    warmup = max(job.graph.warmup, DDP_WARMUP) if ranks.world > 1 else job.graph.warmup
    return CapturedStep(step, job.graph.scope, warmup)


def described(job: Recipe, step: Step | CapturedStep) -> dict[str, Any]:
    """For the summary: what was asked for, recordings made, their seconds, and what stood in the way; {} if nothing."""
    if job.graph.scope == "none":
        return {}
    if isinstance(step, Step):
        return {"scope": job.graph.scope, "recorded": 0, "seconds": 0.0, "obstacle": "there is no GPU"}
    graphs = step.graphs
    return {"scope": job.graph.scope, "recorded": graphs.count, "seconds": graphs.seconds, "obstacle": graphs.obstacle}


def _untimed(*_: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _flat(pairs: Sequence[Pair]) -> Tensors:
    """All tensors of the pairs by 'place.part.name'."""
    return {f"{place}.{part}.{name}": value for place, pair in enumerate(pairs)
            for part, tensors in enumerate(pair) for name, value in tensors.items()}


def _pairs(flat: Tensors) -> list[Pair]:
    """What `_flat` was made of."""
    pairs: dict[int, tuple[Any, Any]] = {}
    for key, value in flat.items():
        place, part, name = key.split(".", 2)
        pairs.setdefault(int(place), ({}, {}))[int(part)][name] = value
    return [pairs[place] for place in sorted(pairs)]
