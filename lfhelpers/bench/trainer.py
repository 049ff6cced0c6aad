"""Losses of a recipe's first steps, the same batches and noise for all recipes; the step itself is train.trainer's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lfhelpers.levers.frozen import Pair
from lfhelpers.recipe import Recipe
from lfhelpers.train.captured import CapturedStep
from lfhelpers.train.ranks import identify
from lfhelpers.train.trainer import BATCHES, Trainer, batch, endless
from lfhelpers.workloads.base import Batch, find

__all__ = ["BATCHES", "Trainer", "batch", "endless", "fresh", "losses", "mirrored"]


def fresh(job: Recipe, steps: int) -> list[Pair]:
    """As many device batches with their noise; no sample or noise is in two of them.

    Were they repeated, they would be learnt by heart, and of a loss near nothing any rounding is a large share.
    """
    workload, device = find(job), identify(job.device).device
    draws = torch.Generator(device).manual_seed(1)
    return [(batch(workload, job, place, device, job.batch.micro), workload.draws(job.batch.micro, draws))
            for place in range(steps)]


def mirrored(pairs: Sequence[Pair]) -> list[Pair]:
    """The same batches with their rows in reverse: the same numbers, added in another order.

    The control of a gate: a run on them differs by rounding alone, so a band that it leaves can tell nothing.
    """
    def turned(part: Batch) -> Batch:
        return {name: value.flip(0) for name, value in part.items()}

    return [(turned(given), turned(noise)) for given, noise in pairs]


def losses(job: Recipe, pairs: Sequence[Pair]) -> tuple[torch.Tensor, int]:
    """The loss of each step, one a pair, float64 [steps], and beside it how many CUDA graphs were recorded.

    Take steps=N and log.skip=0 in the recipe too: they set the schedule.
    """
    trainer = Trainer(job, pairs=((dict(given), dict(noise)) for given, noise in pairs))  # a step may put others there
    values = torch.stack([trainer.run(1)[0].clone() for _ in pairs]).double().cpu()
    recorded = trainer.step.graphs.count if isinstance(trainer.step, CapturedStep) else 0
    trainer.close()
    return values, recorded
