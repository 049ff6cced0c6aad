"""Shards dealt out to workers: another number of workers is another order of samples, so another run."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lfhelpers.pitfalls.base import About, trained
from lfhelpers.pitfalls.order import Fingerprint, order_fingerprint

ABOUT = About(
    "two runs with one seed on two machines part from the first step on",
    "each worker reads shards of its own, and batches are made by worker: their number is part of the order",
    "an order that knows no workers; lf.order_fingerprint shows that two runs had the same",
    "steps with other samples when one worker becomes two [%]")


class ByWorker(IterableDataset[int]):
    """64 samples in 8 shards, every worker its share of the shards."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for shard in range(worker, 8, workers):
            yield from range(8 * shard, 8 * shard + 8)


def break_it() -> float:
    """Percent of steps whose samples differ between one worker and two."""
    one, two = ([batch.tolist() for batch in DataLoader(ByWorker(), batch_size=16, num_workers=workers,
                                                        multiprocessing_context="fork")] for workers in (1, 2))
    return 100 * sum(a != b for a, b in zip(one, two, strict=True)) / len(one)


def detect(broken: bool = True) -> str:
    """How fingerprints differ: of runs with two seeds, as two orders are; empty for runs with one order."""
    return _run("data.workers=0").against(_run("data.workers=0", "seed=1") if broken else _run("data.workers=2"))


def fix_it() -> float:
    """The same for two runs of lfhelpers, without workers and with two."""
    one, two = _run("data.workers=0"), _run("data.workers=2")
    return 100 * len(one.differing(two)) / len(one.steps)


@functools.cache
def _run(*overrides: str) -> Fingerprint:
    with trained(*overrides) as run:
        return order_fingerprint(run)
