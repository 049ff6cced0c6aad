"""The lessons at hand: a ring of them on the device, fed by processes that draw, read at random by the trainer.

A core draws a few hundred lessons a second and a GPU learns from thousands, so each lesson is used several times while
new ones come in. How many come in a step is fixed, not 'what is ready': a run can be repeated, and one that is resumed
draws the same lessons again. What frozen vision makes of a lesson's pictures is computed once, when it comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lfhelpers.data import draws
from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.lessons import Lessons, batches

PORTION = 32
"""Lessons that a worker draws at a time."""
CHUNK = 256
"""Lessons whose pictures frozen vision looks at in one pass."""
See = Callable[[Tensor], Tensor]


class Pool:
    """Lessons 0, 1, 2, ... of which the newest `capacity` are kept."""

    def __init__(self, lessons: Lessons, capacity: int, device: torch.device, workers: int, jitter: bool) -> None:
        self.lessons, self.capacity, self.device, self.workers, self.jitter = lessons, capacity, device, workers, jitter
        self.drawn = 0
        """Lessons that have come in so far."""
        self._kept: Batch = {}
        self._coming: Iterator[Any] = iter(())
        self._spare: Batch = {}
        self._see: See | None = None

    def start(self, drawn: int, total: int) -> None:
        """Be as if `drawn` lessons had come in already; the workers draw on, up to `total` in all."""
        first = max(0, drawn - self.capacity)
        portions = -(-(total - first) // PORTION)
        self._coming = batches(self.lessons, first, portions, PORTION, self.workers)
        self.drawn = first
        self.feed(drawn - first)

    def feed(self, count: int) -> None:
        """Let `count` new lessons in."""
        while count > 0:
            if not self._spare:
                self._spare = next(self._coming)
            ready = len(self._spare["tokens"])
            at = self.drawn % self.capacity
            taken = min(count, ready, self.capacity - at)
            self._store(at, {name: values[:taken] for name, values in self._spare.items()})
            self._spare = {name: values[taken:] for name, values in self._spare.items()} if taken < ready else {}
            self.drawn += taken
            count -= taken

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """`size` lessons at random, on the device; generator: on the device too."""
        rows = torch.randint(min(self.drawn, self.capacity), (size,), generator=generator, device=self.device)
        left_out = "images" if self._see else "seen"
        return {name: values[rows] for name, values in self._kept.items() if name != left_out}

    def look(self, see: See | None) -> None:
        """From now on give what `see` makes of the pictures, uint8 [n, V, P, P, 3], instead of them; None: them."""
        self._see = see
        self._kept.pop("seen", None)
        for first in range(0, min(self.drawn, self.capacity) if see else 0, CHUNK):
            self._keep_seen(first, self._kept["images"][first:min(first + CHUNK, self.drawn)])

    def close(self) -> None:
        """End the workers."""
        self._coming = iter(())

    def _store(self, at: int, lessons: Batch) -> None:
        for name, values in lessons.items():
            values = values.to(self.device)
            if name == "images" and self.jitter:
                values = jittered(values, self.lessons.seed, self.drawn)
            if name not in self._kept:
                self._kept[name] = values.new_empty(self.capacity, *values.shape[1:])
            self._kept[name][at:at + len(values)] = values
            if name == "images" and self._see:
                self._keep_seen(at, values)

    def _keep_seen(self, at: int, images: Tensor) -> None:
        assert self._see is not None
        with torch.no_grad():
            tokens = self._see(images)
        if "seen" not in self._kept:
            self._kept["seen"] = tokens.new_empty(self.capacity, *tokens.shape[1:])
        self._kept["seen"][at:at + len(tokens)] = tokens


def jittered(images: Tensor, seed: int, first: int) -> Tensor:
    """uint8 [n, V, P, P, 3] of lessons `first`, `first` + 1, ...; colours changed as the data engines change them."""
    numbers = torch.arange(first, first + len(images)).numpy()
    matrices = draws.colour_matrices(draws.uniform(seed, 0, numbers, draws.JITTER))
    matrix = torch.from_numpy(matrices).to(images.device, torch.float32)
    flat = images.flatten(1, 3).float()
    changed = torch.baddbmm(matrix[:, None, :, 3].expand_as(flat), flat, matrix[:, :, :3].transpose(1, 2))
    return changed.clamp(0, 255).round().to(torch.uint8).view_as(images)
