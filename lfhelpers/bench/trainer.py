"""Losses of a recipe's first steps, the same batches and noise for all recipes; the step itself is train.trainer's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lfhelpers.levers.frozen import Pair
from lfhelpers.recipe import Recipe
from lfhelpers.train.captured import CapturedStep
from lfhelpers.train.trainer import BATCHES, Trainer, batch, endless
from lfhelpers.workloads.base import Workload

__all__ = ["BATCHES", "Trainer", "batch", "endless", "losses"]


def losses(job: Recipe, steps: int) -> tuple[torch.Tensor, int]:
    """The loss of each step on fresh random images and noise, the same for all recipes: float64 [steps] on the CPU.

    Beside it how many CUDA graphs were recorded. Take steps=N and log.skip=0 in the recipe too: they set the schedule.
    """
    trainer = Trainer(job)
    trainer.pairs = _fresh(trainer.workload, job, trainer.ranks.device)
    values = torch.stack([trainer.run(1)[0].clone() for _ in range(steps)]).double().cpu()
    recorded = trainer.step.graphs.count if isinstance(trainer.step, CapturedStep) else 0
    trainer.close()
    return values, recorded


def _fresh(workload: Workload, job: Recipe, device: torch.device) -> Iterator[Pair]:
    """Pairs without end whose images and draws are new each time, seeded alike for every recipe of a size."""
    draws, base = torch.Generator(device).manual_seed(1), batch(workload, job, 0, device)
    while True:
        images = torch.randint(256, base["images"].shape, generator=draws, device=device, dtype=torch.uint8)
        yield base | {"images": images}, workload.draws(job.batch.micro, draws)
