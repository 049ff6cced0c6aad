"""No data at all: one batch, made beforehand and handed out again and again. It shows the trainer's ceiling.

Nothing may be learnt from its losses: the images are noise. The difference in speed to a real loader is what that
loader costs, and is the most that any better one can bring.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from lfhelpers.data.loader import Batch, Request, stack


class Repeat:
    """The same batch for every step and micro-batch."""

    def __init__(self, request: Request, batch: Batch) -> None:
        self._request, self._batch = request, batch

    def __iter__(self) -> Iterator[Batch]:
        return (dict(self._batch) for _ in self._request.sequence())

    def __len__(self) -> int:
        return self._request.batches()

    def close(self) -> None:
        """Nothing was started."""

    def __enter__(self) -> Repeat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make(request: Request) -> Repeat:
    """Random images uint8 [B, V, P, P, 3] from (seed, rank), the tensors of the first samples, and valid = 1."""
    micro, views, size = request.plan.micro, len(request.fields.images), request.fields.size
    ids = np.arange(micro) % request.manifest.samples
    tensors = [request.tensors(index, request.manifest.read(index, request.fields.others)) for index in ids.tolist()]
    noise = torch.Generator().manual_seed(request.plan.seed + request.rank)
    images = torch.randint(256, (micro, views, size, size, 3), dtype=torch.uint8, generator=noise)
    batch = stack(tensors) | {"images": images, "ids": torch.from_numpy(ids), "valid": torch.ones(micro)}
    if request.pin():
        batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
    return Repeat(request, batch)
