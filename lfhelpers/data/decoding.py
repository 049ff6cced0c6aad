"""Threads that fill batches: read, check, decode, crop and colour, each row straight into its place.

Pillow, libjpeg-turbo and `resize` release the interpreter while they work, so threads scale like processes here, and a
batch needs neither pickling nor a copy. What holds the interpreter, 0.03 ms of the 1.2 ms that an image of 640x480
takes, lets one process feed some thirty cores. Threads take one row after another of the oldest batch, so they are
all busy until the last batch, and how many they are shows in nothing but the time. They are plain daemon threads and no
executor: one that hangs in a dead network file system must not keep the process from ending.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lfhelpers.data import draws, quarantine, resize, turbo
from lfhelpers.data.draws import Draw
from lfhelpers.data.loader import CLOSED, Batch, Request, stack, view, whole_frame
from lfhelpers.data.order import Ids
from lfhelpers.errors import LfError

PATIENCE = 5.0  # seconds that close() waits for rows under way; longer only where a read hangs

Pixels = NDArray[np.uint8]
Filled = tuple[Batch, list[str]]


class DecodePool:
    """Fills uint8 batches in `threads` threads, which start with the first batch; with 0 in the calling thread.

    Pixels are those of images.decode and images.augment, to the last bit. With the recipe's `data.scaled_decode` those
    of plain JPEGs are not, but one or two levels of 255 off on average (see `turbo`), so it is for training alone: what
    a model is judged on is decoded exactly. Which thread makes which row never enters.
    """

    def __init__(self, request: Request, threads: int) -> None:
        # An order of its own: the plan keeps one epoch, and the consumer may still be in the one before.
        self._request = replace(request, plan=replace(request.plan))
        self._threads = threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._running: list[threading.Thread] = []
        self._unfinished: set[_Job] = set()
        self._closed = False
        resize.compiled()  # here, once, and not in every thread at the same time

    def start(self, step: int, micro: int, out: Pixels) -> Future[Filled]:
        """Begin to fill `out`, uint8 [B, V, P, P, 3], with the rank's batch (step, micro), and return at once.

        The result is what `fill` gives. Batches are filled in the order in which they were begun. `out` must not be
        read or written until the result is there. Raises LfError when the pool is closed.
        """
        if self._closed:
            raise LfError(CLOSED)
        job = _Job(self._request, step, micro, out)
        if not self._threads:
            job.run()
            return job.future
        self._unfinished.add(job)
        job.future.add_done_callback(lambda _: self._unfinished.discard(job))
        if not self._running:
            self._running = _started(self._threads, self._jobs)
        for _ in range(self._threads):
            self._jobs.put(job)
        return job.future

    def fill(self, step: int, micro: int, out: Pixels) -> Filled:
        """Fill `out`, uint8 [B, V, P, P, 3]; returns the batch's other tensors, and of each row its fault or "".

        The tensors are those of `sample`, "ids" int64 [B] and "valid" float32 [B], equal to any other engine's.
        Raises the error of the first bad row, an LfError that begins with its shard:key, unless bad ones are skipped.
        """
        return self.start(step, micro, out).result()

    def close(self) -> None:
        """Drop what was begun and end the threads, which finish the row they are at. Further calls do nothing."""
        self._closed = True
        for job in list(self._unfinished):
            job.future.cancel()
        running, self._running = self._running, []
        for _ in running:
            self._jobs.put(None)
        deadline = time.monotonic() + PATIENCE
        for thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Row(NamedTuple):
    """What a row holds beside its pixels. fault: why another sample stands in, or ""."""

    tensors: dict[str, Tensor]
    sample: int
    valid: float
    fault: str


class _Places(NamedTuple):
    """A batch's rows as planned."""

    ids: Ids
    valid: NDArray[np.float32]
    draws: list[Draw]


class _Job:
    """One batch under way. Rows are handed out in order, so the first bad one is the same whoever makes it."""

    def __init__(self, request: Request, step: int, micro: int, out: Pixels) -> None:
        self.future: Future[Filled] = Future()
        self._request, self._step, self._micro, self._out = request, step, micro, out
        self._lock = threading.Lock()
        self._places: _Places | None = None
        self._rows: dict[int, _Row] = {}
        self._errors: dict[int, BaseException] = {}
        self._handed = self._under_way = 0

    def run(self) -> None:
        """Make rows until none is left; whoever makes the last one completes the batch."""
        while (row := self._next()) is not None:
            try:
                self._rows[row] = self._made(row)
            except BaseException as error:  # raised again where the batch is asked for
                self._errors[row] = error
            if self._last():
                with contextlib.suppress(InvalidStateError):  # the pool was closed meanwhile
                    self._complete()

    def _next(self) -> int | None:
        with self._lock:
            if self._over() or self.future.cancelled():
                return None
            self._handed += 1
            self._under_way += 1
            return self._handed - 1

    def _last(self) -> bool:
        with self._lock:
            self._under_way -= 1
            return self._under_way == 0 and self._over()

    def _over(self) -> bool:
        return bool(self._errors) or self._handed == len(self._out)

    def _complete(self) -> None:
        if self._errors:
            self.future.set_exception(self._errors[min(self._errors)])
            return
        rows = [self._rows[row] for row in range(len(self._out))]
        try:
            batch = stack([row.tensors for row in rows])
        except LfError as error:
            self.future.set_exception(error)
            return
        batch["ids"] = torch.tensor([row.sample for row in rows])
        batch["valid"] = torch.tensor([row.valid for row in rows], dtype=torch.float32)
        self.future.set_result((batch, [row.fault for row in rows]))

    def _made(self, row: int) -> _Row:
        request, places = self._request, self._planned()

        def made(index: int) -> dict[str, Tensor]:
            own = index == places.ids[row]
            draw = places.draws[row] if own else request.draws(self._step, np.array([index]))[0]
            members = request.read(index)
            for place, ext in zip(self._out[row], request.fields.images, strict=True):
                place[:] = pixels(members[ext], request.manifest.where(index, ext), draw, request.fields.size,
                                  scaled=request.job.data.scaled_decode)
            return request.tensors(index, members)

        tensors, sample, fault = quarantine.fetch(request, self._step, int(places.ids[row]), made)
        return _Row(tensors, sample, 0.0 if fault else float(places.valid[row]), fault)

    def _planned(self) -> _Places:
        """Made by the first thread that gets here: a new epoch's order takes 0.1 s for a million samples."""
        with self._lock:
            if self._places is None:
                ids, valid = self._request.plan.slots(self._step, self._micro, self._request.rank)
                self._places = _Places(ids, valid, self._request.draws(self._step, ids))
            return self._places


def pixels(data: bytes, where: str, draw: Draw, size: int, scaled: bool = False) -> Pixels:
    """One view as uint8 [size, size, 3]: loader.view of its frame, by a shorter way where the file is a plain JPEG.

    scaled: let libjpeg shrink plain JPEGs to a half, a quarter or an eighth if `size` pixels are left of the crop; the
    result is then close to the exact one, and not equal. Raises LfError naming `where`.
    """
    whole = turbo.size(data)
    if whole:
        box = draws.crop_box(draw.offset, *whole)
        factor = turbo.factor(box, size) if scaled else 1
        frame = turbo.decode(data, *whole, factor)
        if frame is not None:
            left, top, right, bottom = (side / factor for side in box)
            return resize.augment(frame, (left, top, right, bottom), draw.matrix, size)
    return view(whole_frame(data, where), draw, size)


def _started(count: int, jobs: SimpleQueue[Any]) -> list[threading.Thread]:
    """Threads that run jobs until they get None, each with one torch thread."""
    torch_threads, ready = torch.get_num_threads(), threading.Barrier(count + 1)

    def serve() -> None:
        torch.get_num_threads()  # a thread takes the common number over at its first use, which must not come later
        torch.set_num_threads(1)  # else the workload's sample() would start a team of them for each of ours
        ready.wait()
        while (job := jobs.get()) is not None:
            job.run()

    threads = [threading.Thread(target=serve, name=f"decode-{number}", daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    torch.set_num_threads(torch_threads)  # theirs was also the common number
    return threads
