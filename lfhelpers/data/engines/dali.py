"""Decoding, cropping, resizing and colours by NVIDIA DALI: on the GPU and its JPEG engine, or on the CPU without one.

The order is the plan's: DALI is fed batch by batch (`dali_source`), where its own readers would split shards their way.
A file that DALI would misread comes as Pillow's pixels (`dali.prepared`). What only a decoder sees makes DALI give up
the whole batch and itself; that batch is then decoded by Pillow through the quarantine, a new pipeline is built and fed
what the old one had not finished, and nothing is lost or repeated. Batches come as uint8, a quarter of float32, and
workloads normalise them. On the GPU they are there already, and `train.feed` has nothing left to copy but the rest.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch

from lfhelpers.data import quarantine
from lfhelpers.data.dali_decoder import Decoder, Settings, reason
from lfhelpers.data.dali_source import Encoded, Failed, Source
from lfhelpers.data.decoding import DecodePool
from lfhelpers.data.loader import CLOSED, Batch, Request
from lfhelpers.data.meter import Meter
from lfhelpers.errors import LfError
from lfhelpers.measure.hardware import device as choose_device

THREADS_A_SOURCE = 5  # one prepares 17,000 files of 120 kB a second on Zen 5; an H200 and 16 threads decode 27,000
REFUSALS = 3  # batches in a row that DALI may refuse and Pillow find nothing wrong with


def make(request: Request) -> DaliLoader:
    """A loader whose batches hold images as uint8 [B, V, P, P, 3], on the GPU where the recipe trains there.

    Raises LfError where DALI is not installed.
    """
    try:
        import nvidia.dali  # noqa: F401
    except ImportError as error:
        raise LfError(f"data.loader='dali' needs NVIDIA DALI, which can't be imported ({error}): pip install "
                      "nvidia-dali-cuda120 (Linux, x86-64), or take data.loader='threads'.") from error
    return DaliLoader(request)


class DaliLoader:
    """The batches of a request, once. Its source workers start at once, the pipeline with the first batch.

    meter: how full its queue was; files: how many images were decoded; routed: how many of them by Pillow, and why;
    rebuilt: how often DALI gave up and was built anew; `stats` sums all of it up.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        data, self._device = request.job.data, _device(request)
        self._settings = Settings(request.plan.micro, len(request.fields.images), request.fields.size, data.augment,
                                  self._device, max(request.workers(), 1), data.hw_decoder_load)
        self._record = quarantine.Record(request, request.bad) if request.bad else None
        self.meter = Meter()
        self.files, self.rebuilt, self.routed = 0, 0, Counter[str]()
        self._depth, self._left = data.depth, request.batches()
        self._flying: deque[Encoded | Failed] = deque()
        self._refused, self._error = 0, RuntimeError()
        self._decoder: Decoder | None = None
        self._source: Source | None = Source(request, sources(request.workers()), self._depth)

    def __iter__(self) -> Iterator[Batch]:
        try:
            for step, micro in self._request.sequence():
                batch, faults = self._next(step, micro)
                if self._record:
                    self._record(step, micro, faults)
                yield batch
        finally:
            self.close()

    def __len__(self) -> int:
        return self._request.batches()

    def close(self) -> None:
        """End the workers and the pipeline, and wait for both. Further calls do nothing."""
        source, self._source = self._source, None
        self._end_decoder()  # before the memory that it reads goes
        self._flying.clear()
        if source:
            source.close()

    def __enter__(self) -> DaliLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def stats(self) -> dict[str, Any]:
        """Meter.stats; images decoded, and how many of them by Pillow for each reason; pipelines built anew."""
        return self.meter.stats() | {"files": self.files, "by_pillow": dict(self.routed), "rebuilt": self.rebuilt}

    def _next(self, step: int, micro: int) -> tuple[Batch, list[str]]:
        if self._source is None:
            raise LfError(CLOSED)
        began, depth = time.perf_counter(), len(self._flying)
        self._fill(self._source)
        filled, encoded = time.perf_counter(), self._flying.popleft()
        if isinstance(encoded, Failed):
            raise encoded.error from RuntimeError(f"the data worker's traceback:\n{encoded.trace}")
        batch, faults = self._decoded(encoded) or self._by_pillow(encoded, step, micro)
        self._note(filled - began, time.perf_counter() - filled, depth)
        self.files += len(encoded.files)
        self._source.free(encoded)
        if self._decoder:
            self._fill(self._source, wait=False)  # it decodes while this batch is used
        return batch, faults

    def _note(self, read: float, decoded: float, depth: int) -> None:
        """Tell the meter for how many seconds the consumer waited for files, and for the decoder."""
        if self.files:  # without the first one's wait, which starts everything
            self.meter.spent("read", "busy", read)
            self.meter.spent("read", "blocked_out", decoded)
            self.meter.spent("decode", "busy", decoded)
            self.meter.spent("decode", "blocked_in", read)
        self.meter.got(read + decoded, {"in flight": depth})

    def _fill(self, source: Source, wait: bool = True) -> None:
        """Have `depth` batches in flight, or as many as are there; `wait` for one, and for all that start a pipeline.

        A pipeline must be given as many batches at its start as it is ever to have.
        """
        while self._left and len(self._flying) < self._depth and not self._failing():
            taken = source.take(wait and not (self._decoder and self._flying))
            if taken is None:
                return
            self._left -= 1
            self._flying.append(taken)
            if self._decoder and isinstance(taken, Encoded):
                try:
                    self._decoder.feed(taken)
                except RuntimeError:  # a batch in flight was its end; the next pipeline will tell which
                    self._end_decoder()
                    self.rebuilt += 1
                    if not wait:
                        return
        waiting = [batch for batch in self._flying if isinstance(batch, Encoded)]
        if self._decoder is None and waiting:
            wide, high = (max(batch.frame[side] for batch in waiting) for side in (0, 1))
            self._decoder = Decoder(self._settings, len(waiting), (wide, high))
            for batch in waiting:
                self._decoder.feed(batch)

    def _failing(self) -> bool:
        return bool(self._flying) and isinstance(self._flying[-1], Failed)

    def _decoded(self, encoded: Encoded) -> tuple[Batch, list[str]] | None:
        """The finished batch and its faults; None where DALI gave up, and with it the pipeline."""
        assert self._decoder
        images = None
        try:
            images = self._decoder.images()
        except RuntimeError as error:
            self._error = error.with_traceback(None)  # in which the pipeline would live on
        if images is None:
            self._end_decoder()
            self.rebuilt += 1
            return None
        self._refused = 0
        self.routed.update(encoded.routed)
        rest = {name: value.pin_memory() for name, value in encoded.rest.items()} if self._request.pin() \
            else encoded.rest
        return rest | {"images": images}, encoded.faults

    def _end_decoder(self) -> None:
        decoder, self._decoder = self._decoder, None
        if decoder:
            decoder.close()

    def _by_pillow(self, encoded: Encoded, step: int, micro: int) -> tuple[Batch, list[str]]:
        """The batch that DALI gave up, decoded here. Raises LfError where that becomes a habit without a reason."""
        settings = self._settings
        images = np.empty((settings.samples, settings.views, settings.size, settings.size, 3), np.uint8)
        with contextlib.closing(DecodePool(self._request, self._request.workers())) as pool:
            batch, faults = pool.fill(step, micro, images)
        self.routed["in a batch that DALI gave up"] += len(encoded.files)
        self._refused = 0 if any(faults) else self._refused + 1
        if self._refused == REFUSALS:
            raise LfError(f"DALI gave up {REFUSALS} batches in a row in which Pillow finds nothing wrong "
                          f"({reason(self._error)}); take data.loader='threads', or, if memory is short, a smaller "
                          "batch.") from self._error
        return batch | {"images": torch.from_numpy(images).to(self._device)}, faults


def sources(workers: int) -> int:
    """Processes that read files for `workers` decoding threads; without any the training process does it."""
    return min(workers, max(2, workers // THREADS_A_SOURCE))


def _device(request: Request) -> torch.device:
    """This rank's, by torchrun's variable."""
    kind, _ = choose_device(request.job.device)
    return torch.device(kind, int(os.environ.get("LOCAL_RANK", 0))) if kind == "cuda" else torch.device("cpu")
