"""Writes down what each step was really given, as hashes: so that two runs can be held against each other.

A hash of a step is the sum of one 64-bit number for each row, made of the row's place in the global batch and of its
content. Sums don't depend on who adds: the same step has the same hash on one rank or eight, in one micro-batch or
four, with any number of workers and from any engine. Two hashes are kept: of the samples' numbers, and of their pixels
as they came out of decoding and augmentation (about 256 bytes a sample, evenly spread), where they lie on the host;
engines that decode in another way have other pixels and the same samples. It costs some ten microseconds a sample.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch

TAKEN = 256
"""Numbers of each sample's images that are hashed."""


class OrderHash(Hook):
    """Adds a line a step to order-rank-N.jsonl: step (from 1), samples, ids and pixels, the last three summed up."""

    def __init__(self, ranks: Ranks) -> None:
        self._name = f"order-rank-{ranks.rank}.jsonl"
        self._sums: dict[int, list[int | None]] = {}

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Take the run's folder."""
        self._run = run

    def batch_taken(self, step: int, rows: slice, host: Batch) -> None:
        """Add a micro-batch to its step's sums; padding counts nothing."""
        places = np.arange(rows.start, rows.stop, dtype=np.uint64)
        real = host["valid"].numpy() > 0 if "valid" in host else np.ones(len(places), dtype=bool)
        contents: list[NDArray[np.uint64] | None] = [host["ids"].numpy().astype(np.uint64), pixels(host.get("images"))]
        sums = self._sums.setdefault(step, [0, 0, 0])
        sums[0] = (sums[0] or 0) + int(real.sum())
        for place, content in enumerate(contents, start=1):
            before = sums[place]
            sums[place] = None if content is None or before is None else \
                (before + int(mixed(places, content)[real].sum(dtype=np.uint64))) % 2**64

    def step(self, row: dict[str, Any]) -> None:
        """Write the step's line."""
        samples, ids, seen = self._sums.pop(row["step"] - 1)
        line = {"step": row["step"], "samples": samples, "ids": hexadecimal(ids), "pixels": hexadecimal(seen)}
        self._run.append(self._name, [line])


def pixels(images: Tensor | None) -> NDArray[np.uint64] | None:
    """A number for each sample's views, uint64 [B]; None where there are no images, or they lie on a GPU."""
    if images is None or images.is_cuda:
        return None
    flat = images.flatten(1)
    taken = np.ascontiguousarray(flat[:, ::max(1, flat.shape[1] // TAKEN) | 1].numpy())
    return np.array([zlib.crc32(row) for row in taken], dtype=np.uint64)


def mixed(places: NDArray[np.uint64], contents: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for each (place, content), by splitmix64's finaliser (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        word = (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ contents * np.uint64(0xD6E8FEB86659FD93)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            word = (word ^ word >> np.uint64(shift)) * np.uint64(factor)
        return word ^ word >> np.uint64(31)


def hexadecimal(number: int | None) -> str | None:
    """As 16 digits: JSON's numbers end at 2**53 in many readers."""
    return None if number is None else f"{number:016x}"
