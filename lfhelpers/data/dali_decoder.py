"""A DALI pipeline that decodes batches one by one, and how its output becomes a tensor that torch may keep.

The decoded batch is copied once on the device, 20 us for 256 images of 224x224, and not handed over as it is: nvJPEG's
engine writes where it is told without waiting for the stream (pytorch/vision PR 9606, torchcodec PR 1634), so memory
may go back to DALI only after everything that reads it has run, which nobody can know of a batch that was given away.
The host waits for DALI's own work alone, and never for the training's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lfhelpers.data import dali
from lfhelpers.data.dali_source import Encoded
from lfhelpers.errors import LfError


@dataclass(frozen=True)
class Settings:
    """What a decoder makes: uint8 [samples, views, size, size, 3] on `device`, by `threads` of its own.

    colours: whether batches bring matrices. hardware: share of JPEGs for the GPU's JPEG engine (dali.decoded).
    """

    samples: int
    views: int
    size: int
    colours: bool
    device: torch.device
    threads: int
    hardware: float = 1.0


class Decoder:
    """A pipeline that is fed by hand, and gives up for good with the first file that it can't decode."""

    def __init__(self, settings: Settings, ahead: int, frame: tuple[int, int] = (0, 0)) -> None:
        """ahead: how many batches it is fed before the first one is asked for, and has in flight at most.

        frame: the pixels, wide and high, of most images; larger ones are decoded too, and take longer.
        """
        self._shape = (settings.samples, settings.views, settings.size, settings.size, 3)
        self._device, self._unfed = settings.device, ahead
        self._lent: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        self._pipeline = _pipeline(settings, ahead, frame) if settings.views else None

    def feed(self, batch: Encoded) -> None:
        """Start decoding a batch, whose files must stay where they are until `images` has returned it."""
        if self._pipeline is None:
            return
        self._pipeline.feed_input("files", batch.files)
        self._pipeline.feed_input("boxes", batch.boxes)
        if batch.matrices is not None:
            self._pipeline.feed_input("matrices", batch.matrices)
        self._unfed -= 1
        if self._unfed <= 0:
            self._pipeline.schedule_run()  # the first time it runs all batches that it was fed

    def images(self) -> Tensor:
        """The next batch, uint8 [B, V, P, P, 3] on the device. Raises RuntimeError where a file can't be decoded."""
        if self._pipeline is None:
            return torch.empty(self._shape, dtype=torch.uint8, device=self._device)
        (frames,) = self._pipeline.outputs()  # waits until they are there
        shared = torch.from_dlpack(frames.as_tensor()).view(self._shape)
        if self._device.type == "cpu":
            return shared
        with torch.cuda.device(self._device):
            images, copied = shared.clone(), torch.cuda.Event()
            copied.record()
        self._lent.append((copied, shared))
        while self._lent and self._lent[0][0].query():
            self._lent.popleft()  # back to DALI
        return images

    def close(self) -> None:
        """End the pipeline, once nothing reads its memory any more; it then lets go of the files that it was fed."""
        for copied, _ in self._lent:
            copied.synchronize()
        self._lent.clear()
        self._pipeline = None


def reason(error: RuntimeError) -> str:
    """What DALI says, without the traceback of the graph before it."""
    return str(error).rpartition("encountered:")[2].strip().partition("\n")[0].rstrip(" :.")


def _pipeline(settings: Settings, ahead: int, frame: tuple[int, int]) -> Any:
    """A graph of files, boxes and matrices to uint8 [P, P, 3] a view. Raises LfError where DALI can't start."""
    from nvidia.dali import Pipeline, fn

    gpu = settings.device.type == "cuda"
    try:
        graph = Pipeline(settings.samples * settings.views, settings.threads, settings.device.index if gpu else None,
                         prefetch_queue_depth=ahead)
        with graph:
            files, boxes = (fn.external_source(name=name, no_copy=True) for name in ("files", "boxes"))
            matrices = fn.external_source(name="matrices", no_copy=True) if settings.colours else None
            frames = dali.decoded(files, "mixed" if gpu else "cpu", settings.hardware, frame)
            graph.set_outputs(dali.augmented(frames, boxes, matrices, settings.size))
        graph.build()
    except RuntimeError as error:
        raise LfError(f"DALI can't start on {settings.device}: {reason(error)}; `lfhelpers doctor` shows whether its "
                      "build fits the driver; or take data.loader='threads'.") from error
    return graph
