"""Losses of a recipe's first steps, the same batches and noise for all recipes; the step itself is train.trainer's."""

from __future__ import annotations

import itertools

import torch

from lfhelpers.recipe import Recipe
from lfhelpers.train.captured import CapturedStep
from lfhelpers.train.trainer import BATCHES, Trainer, batch, endless

__all__ = ["BATCHES", "Trainer", "batch", "endless", "losses"]


def losses(job: Recipe, steps: int) -> tuple[torch.Tensor, int]:
    """The loss of each step on samples and noise that are never repeated, the same for all recipes: float64 [steps].

    Were they repeated, they would be learnt by heart, and of a loss near nothing any rounding is a large share. Beside
    it how many CUDA graphs were recorded. Take steps=N and log.skip=0 in the recipe too: they set the schedule.
    """
    trainer = Trainer(job)
    workload, device = trainer.workload, trainer.ranks.device
    draws = torch.Generator(device).manual_seed(1)
    trainer.pairs = ((batch(workload, job, place, device, job.batch.micro), workload.draws(job.batch.micro, draws))
                     for place in itertools.count())
    values = torch.stack([trainer.run(1)[0].clone() for _ in range(steps)]).double().cpu()
    recorded = trainer.step.graphs.count if isinstance(trainer.step, CapturedStep) else 0
    trainer.close()
    return values, recorded

