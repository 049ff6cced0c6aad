"""The loader of a careful engineer: everything up to uint8 batches is done in workers, with the webdataset library.

Its stock sources split shards among ranks and workers, which gives ranks unequal numbers of batches, and none at all
to a worker when shards are few. So the first stage is our own: it reads samples by the plan, and worker w of W makes
whole batches w, w + W, w + 2W, ..., which torch collects in turn, so the order is the plan's for any number of
workers. Normalisation is left to the device: a uint8 batch is a quarter of the float32 one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
import webdataset as wds
from torch.utils.data import get_worker_info

from lfhelpers.data import manifest
from lfhelpers.data.loader import Batch, Request, WorkerLoader, stack, view


@dataclass(frozen=True)
class PlannedSamples:
    """The pipeline's source: the ids of this worker's batches, with their draw and whether they count."""

    request: Request

    def __call__(self) -> Iterator[dict[str, Any]]:
        request, worker = self.request, get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for step, micro in islice(request.sequence(), first, None, stride):
            ids, valid = request.plan.slots(step, micro, request.rank)
            for index, counts, draw in zip(ids.tolist(), valid.tolist(), request.draws(step, ids), strict=True):
                yield {"__key__": manifest.key(index), "index": index, "step": step, "valid": counts, "draw": draw}


def make(request: Request) -> WorkerLoader:
    """A loader whose batches hold images as uint8 [B, V, P, P, 3], pinned where asked for and there is a GPU."""

    def decoded(raw: dict[str, Any]) -> dict[str, Any]:
        (frames, tensors), index, fault = request.fetch(raw["index"], raw["step"])
        draw = request.draws(raw["step"], np.array([index]))[0] if fault else raw["draw"]
        pixels = np.empty((len(request.fields.images), request.fields.size, request.fields.size, 3), np.uint8)
        for place, frame in zip(pixels, frames, strict=True):
            place[:] = view(frame, draw, request.fields.size)
        return {"pixels": pixels, "tensors": tensors, "index": index, "valid": 0.0 if fault else raw["valid"],
                "fault": fault}

    pipeline = wds.DataPipeline(PlannedSamples(request), wds.map(decoded),
                                wds.batched(request.plan.micro, collation_fn=_collate, partial=False))
    # torch's DataLoader and not wds.WebLoader, which is the same inside, but starts late and can't be closed.
    return WorkerLoader(request, pipeline, pin=request.pin(), batch_size=None)


def _collate(samples: list[dict[str, Any]]) -> tuple[Batch, list[str]]:
    return stack([sample["tensors"] for sample in samples]) | {
        "images": torch.from_numpy(np.stack([sample["pixels"] for sample in samples])),
        "ids": torch.tensor([sample["index"] for sample in samples]),
        "valid": torch.tensor([sample["valid"] for sample in samples], dtype=torch.float32),
    }, [sample["fault"] for sample in samples]
