"""The loader of published training loops: workers decode, and the training process does the rest between two steps.

Whole 640x480 frames cross the process boundary (0.9 MB each, against 0.15 MB at 224x224), and crop, resize, colours
and normalisation to float32 are done one image at a time while the accelerator waits. It is kept as found, so that
the ladder starts where people are; the pixels are the same as those of every other engine on the Pillow path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Sampler, default_collate

from lfhelpers.data.draws import Draw
from lfhelpers.data.loader import Batch, Request, WorkerLoader, stack, view
from lfhelpers.data.order import Ids

Sample = tuple[list[Tensor], dict[str, Tensor], int, str]


class Samples(Dataset[Sample]):
    """A row by (id, step): its views as whole frames, uint8 [H, W, 3] each, other tensors, whose they are, fault."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def __getitem__(self, place: tuple[int, int]) -> Sample:
        (views, tensors), index, fault = self.request.fetch(*place)
        return [torch.from_numpy(np.array(view)) for view in views], tensors, index, fault


@dataclass(frozen=True)
class PlannedIds(Sampler[list[tuple[int, int]]]):
    """The (id, step) of each row of each batch, as the plan has them."""

    request: Request

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        plan = self.request.plan
        return ([(index, step) for index in plan.slots(step, micro, self.request.rank)[0].tolist()]
                for step, micro in self.request.sequence())

    def __len__(self) -> int:
        return self.request.batches()


def make(request: Request) -> WorkerLoader:
    """A loader whose batches hold images as float32 [B, V, 3, P, P] in -1..1, never pinned."""
    size = request.fields.size

    def finish(raw: tuple[Iterable[Tensor], Batch, Ids], step: int, micro: int) -> Batch:
        frames, batch, ids = iter(raw[0]), raw[1], raw[2]
        planned, valid = request.plan.slots(step, micro, request.rank)
        images = torch.empty(len(ids), len(request.fields.images), 3, size, size)
        for views, draw in zip(images, request.draws(step, ids), strict=True):
            for place in views:
                place.copy_(_normalised(next(frames), draw, size))
        valid *= ids == planned
        return batch | {"images": images, "ids": torch.from_numpy(ids), "valid": torch.from_numpy(valid)}

    return WorkerLoader(request, Samples(request), finish, batch_sampler=PlannedIds(request), collate_fn=_collate)


def _collate(samples: list[Sample]) -> tuple[tuple[Iterable[Tensor], Batch, Ids], list[str]]:
    """All frames of the batch, view by view: one tensor [B * V, H, W, 3] where they have one size, else a list."""
    views, tensors, ids, faults = zip(*samples, strict=True)
    frames = [frame for sample in views for frame in sample]
    same = len({frame.shape for frame in frames}) == 1
    return (default_collate(frames) if same else frames, stack(tensors), np.array(ids)), list(faults)


def _normalised(frame: Tensor, draw: Draw, size: int) -> Tensor:
    """One frame uint8 [H, W, 3] as float32 [3, P, P] in -1..1."""
    pixels = torch.from_numpy(view(Image.fromarray(frame.numpy()), draw, size))
    return pixels.permute(2, 0, 1).float() / 127.5 - 1
