"""A pipeline in a handful of numbers: what its stages cost, and how many images a second must come of that.

Batches are replayed one by one as `engines.threads` makes them: workers fill the oldest of `depth` batches ahead of the
trainer, which copies, steps, and comes for the next one. Two things follow that rules of thumb miss: workers help until
loading is as fast as the step, and not beyond; a deep queue bridges hiccups, and never a lack of workers. The price of
so few numbers: the model knows no memory bandwidth, no interpreter lock, no hyper-threads and no neighbours. So it says
where to look first, and a measurement has the last word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LOADING = ("read", "decode", "augment")
BATCHES = 600
EVERY = 50  # batches from one hiccup to the next
WARM = 50  # batches before the statistics begin; one period of hiccups
NEGLIGIBLE = 1e-3  # scatter that changes nothing, and of which the draws below would overflow
FED = 0.01  # share of time starved up to which a trainer counts as fed


@dataclass(frozen=True)
class Costs:
    """Seconds a stage takes for one image by itself; `cores` is how many the loader and the trainer's host share.

    read waits and needs no core; decode and augment need one; copy is the trainer's own work on a core, and step runs
    on the device, after `launch` seconds for each batch of any size. scatter: standard deviation of one image's loading
    as a share of its mean. hiccup: how late one batch in 50 comes, as from a busy file server.
    """

    read: float
    decode: float
    augment: float
    copy: float
    step: float
    cores: int
    launch: float = 0.0
    scatter: float = 0.0
    hiccup: float = 0.0

    def loading(self, workers: int, batch: int) -> float:
        """Seconds in which workers, 0 for the trainer itself, fill a batch; cores may be fewer than workers."""
        work = self.decode + self.augment
        shared = (work + self.copy) / self.cores if workers else 0.0
        return batch * max((self.read + work) / max(workers, 1), shared)

    def consuming(self, batch: int) -> float:
        """Seconds of a batch in the trainer: copy and step."""
        return batch * (self.copy + self.step) + self.launch


@dataclass(frozen=True)
class Prediction:
    """What comes of it. starved_share: of the trainer's time, 0..1; bottleneck: the stage that holds the others up."""

    images_per_s: float
    starved_share: float
    bottleneck: str


def predict(costs: Costs, workers: int, depth: int, batch: int, seed: int = 0) -> Prediction:
    """Images a second with so many workers (threads; 0: the trainer loads by itself) and batches filled ahead."""
    asked, got = _replay(costs, workers, depth if workers else 0, batch, seed)
    wall = got[-1] - got[WARM]
    waited = float((got - asked)[WARM + 1:].sum())
    return Prediction((BATCHES - 1 - WARM) * batch / wall, waited / wall, bottleneck(costs, workers, batch))


def bottleneck(costs: Costs, workers: int, batch: int) -> str:
    """The costliest stage of the slower side: read, decode or augment before the queue, copy or step behind it."""
    if costs.loading(workers, batch) > costs.consuming(batch):
        return max(LOADING, key=lambda stage: getattr(costs, stage))
    return "copy" if batch * costs.copy > batch * costs.step + costs.launch else "step"


def enough_workers(costs: Costs, depth: int, batch: int, most: int = 64) -> int | None:
    """The fewest workers with which the trainer starves for less than 1 % of its time; None if `most` don't do it."""
    return next((workers for workers in range(1, most + 1)
                 if predict(costs, workers, depth, batch).starved_share < FED), None)


def _replay(costs: Costs, workers: int, depth: int, batch: int, seed: int
            ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(when the trainer came for each batch, when it had it), in seconds.

    A batch is begun when the one before it is filled, and when the trainer has come for the one `depth` before it.
    """
    fills = costs.loading(workers, batch) * _jitter(costs.scatter / math.sqrt(batch), seed)
    fills[::EVERY] += costs.hiccup
    asked, got = np.zeros(BATCHES), np.zeros(BATCHES)
    ready, step = 0.0, costs.consuming(batch)
    for number in range(BATCHES):
        if number:
            asked[number] = got[number - 1] + step
        begun = max(ready, asked[number - depth] if number >= depth else 0.0)
        ready = begun + fills[number]
        got[number] = max(ready, asked[number])
    return asked, got


def _jitter(scatter: float, seed: int) -> NDArray[np.float64]:
    """Factors with mean 1 and this standard deviation, never below 0."""
    if scatter < NEGLIGIBLE:
        return np.ones(BATCHES)
    return np.random.default_rng(seed).gamma(scatter**-2, scatter**2, BATCHES)
