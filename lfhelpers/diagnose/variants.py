"""The steps that an ablation compares: the recipe's own, and the same with one thing taken away.

Each is the real step, built by the parts that train, so what its absence wins is measured and not inferred, contention
included. What is left out is left out altogether: a step without exchange runs on the bare model as a rank alone, one
without an update drops its gradients.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lfhelpers.diagnose.ablation import ANSWERED, CACHED, FORWARD, FULL, HALF, NO_EXCHANGE, NO_UPDATE, ONE
from lfhelpers.levers.frozen import Pair
from lfhelpers.measure.clock import StepClock
from lfhelpers.train.captured import make_step
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.step import VALUES
from lfhelpers.train.trainer import Stepping, Trainer

READS = ("item", "__bool__", "__float__", "__int__", "tolist")
"""Methods of a tensor by which the host reads a value."""


@dataclass(frozen=True)
class Variant:
    """A step and the batches that it is given."""

    name: str
    step: Stepping
    pairs: Iterator[Pair]
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def variants(trainer: Trainer, real: Iterator[Pair], held: Sequence[Pair]) -> list[Variant]:
    """All that tell something of this job; `held` are device pairs that are used again and again."""
    job, ranks, parts = trainer.job, trainer.ranks, trainer.parts
    step, micro = trainer.step, job.batch.micro
    found = [Variant(FULL, step, real), Variant(CACHED, _again(trainer), endless(held)),
             Variant(NO_UPDATE, _built(trainer, optimizer=SimpleNamespace(update=lambda _: parts.optimizer.drop())),
                     endless(held))]
    if parts.exchange is not None:
        found.append(Variant(NO_EXCHANGE, _built(trainer, model=bare(parts.model), ranks=ranks.alone()),
                             endless(held), parts.exchange.silent))
    if job.graph.scope == "none" or ranks.device.type == "cpu":
        found.append(Variant(FORWARD, _forward(trainer), endless(held)))
    sizes = {ONE: 1} | ({HALF: micro // 2} if micro >= 4 and job.compile.scope == "none" else {})
    found += [Variant(name, _again(trainer), endless([cut(pair, size) for pair in held]))
              for name, size in sizes.items() if micro > 1]
    return found


def answered(trainer: Trainer, held: Sequence[Pair]) -> Variant:
    """The step on held batches whose reads by the host are answered from a recording, so that nobody waits for them."""
    answers = Answers()
    return Variant(ANSWERED, _again(trainer), endless(held), answers.given)


@dataclass
class Answers:
    """What a tensor's values were, read by read, to be told again without looking."""

    known: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """For the block, reads are answered from the recording; what it doesn't hold yet is read, and kept.

        A block must begin where steps begin, and its steps must read alike. Not for several threads.
        """
        plain = {name: getattr(Tensor, name) for name in READS}
        places: dict[str, int] = dict.fromkeys(READS, 0)

        def replaced(name: str) -> Callable[[Tensor], Any]:
            known, read = self.known[name], plain[name]

            def answer(tensor: Tensor) -> Any:
                place = places[name]
                places[name] += 1
                if place >= len(known):
                    known.append(read(tensor))
                return known[place]
            return answer

        for name in READS:
            setattr(Tensor, name, replaced(name))
        try:
            yield
        finally:
            for name, method in plain.items():
                setattr(Tensor, name, method)


def endless(held: Sequence[Pair]) -> Iterator[Pair]:
    """The pairs again and again, each time as dicts of their own."""
    return ((dict(batch), dict(draws)) for batch, draws in itertools.cycle(held))


def cut(pair: Pair, samples: int) -> Pair:
    """The first samples of a pair."""
    batch, draws = ({name: value[:samples].contiguous() for name, value in part.items()} for part in pair)
    return batch, draws


def _again(trainer: Trainer) -> Stepping:
    """The recipe's step once more: a recording and a frozen part computed ahead are its own."""
    return _built(trainer)


def _built(trainer: Trainer, **other: Any) -> Stepping:
    """The recipe's step with other parts: model, optimizer or ranks."""
    parts: dict[str, Any] = {"model": trainer.parts.model, "optimizer": trainer.parts.optimizer,
                             "ranks": trainer.ranks} | other
    with trainer.ordered():
        return make_step(trainer.job, trainer.workload, parts["model"], parts["optimizer"], trainer.parts.precision,
                         parts["ranks"], StepClock(trainer.ranks.device))


def _forward(trainer: Trainer) -> Stepping:
    """The loss of each micro-batch, with all that backward would need; backward never comes."""
    model, nothing = bare(trainer.parts.model), torch.zeros(len(VALUES), device=trainer.ranks.device)

    def step(_: int, pairs: Iterator[Pair], micro_batches: int) -> Tensor:
        for _ in range(micro_batches):
            batch, draws = next(pairs)
            with trainer.parts.precision.autocast():
                trainer.workload.loss(model, batch, draws)
        return nothing
    return step
