"""A worker init function with base seed + worker number: the same draws on every rank and in every epoch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from lfhelpers.data import draws
from lfhelpers.pitfalls.base import About, repeated

ABOUT = About(
    "each epoch augments a sample in the same way, and each rank like all others",
    "worker_init_fn seeds with base + worker number, which knows neither rank nor epoch; published as the cure",
    "one seed in the recipe, and draws by (seed, epoch, sample)",
    "draws of two ranks, two workers and two epochs that repeat [%]")
RANKS, WORKERS, EPOCHS, SAMPLES = 2, 2, 2, 8


class Crops(Dataset[float]):
    """A rank's samples; one is its number and its draw."""

    def __init__(self, rank: int, epoch: int, by_worker: bool) -> None:
        self.rank, self.epoch, self.by_worker = rank, epoch, by_worker

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> float:
        if self.by_worker:
            return float(np.random.random())
        return float(draws.uniform(0, self.epoch, np.array([self.rank * SAMPLES + index]), draws.CROP)[0, 0])


def break_it() -> float:
    """Percent of repeated draws with the published worker function."""
    return repeated(_drawn(by_worker=True))


def detect(broken: bool = True) -> str:
    """Which share of the draws repeats; empty for none."""
    share = repeated(_drawn(by_worker=broken))
    return f"{share:.0f} % of the draws repeat one of another rank or epoch" if share else ""


def fix_it() -> float:
    """The same with draws by seed, epoch and sample."""
    return repeated(_drawn(by_worker=False))


@functools.cache
def _drawn(by_worker: bool) -> list[float]:
    return [float(value) for rank in range(RANKS) for epoch in range(EPOCHS)
            for batch in DataLoader(Crops(rank, epoch, by_worker), batch_size=4, num_workers=WORKERS,
                                    worker_init_fn=_published, multiprocessing_context="fork")
            for value in batch]


def _published(worker: int) -> Any:
    np.random.seed(42 + worker)
