"""Where the engine `dali` gets its files from: processes that read, check and prepare whole batches ahead of it.

DALI's own parallel external_source would spawn its workers, so it could not serve a workload of the user's own file
nor a remote dataset, whose readers share memory; it takes seconds to start, and names in /dev/shm outlive a kill. These
are forked as the other engines' workers are. Files lie in memory that has no name and goes with its processes; DALI
reads them there, uncopied, and a batch stays until it is freed, so that a pipeline that failed can be fed again. Only
places, boxes and other tensors are sent: with feeding DALI, 5 us of the training process a file.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import traceback
import weakref
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from mmap import mmap
from multiprocessing import connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lfhelpers.data import dali, draws, quarantine
from lfhelpers.data.loader import Batch, Request, stack, whole_frame
from lfhelpers.errors import LfError
from lfhelpers.processes import die_with_parent

_APART = 64  # bytes between two files: decoders read a little further than they should
_GRACE = 2.0  # seconds
_LARGEST = 2**30  # bytes of shared memory a batch; one that needs more sends the rest of its files as messages

_Raw = dict[str, tuple[torch.dtype, torch.Size, NDArray[np.uint8]]]


@dataclass(frozen=True)
class Encoded:
    """One batch before it is decoded, its files sample by sample and view by view."""

    files: list[Any]
    """B * V of uint8 [bytes], views of shared memory."""
    boxes: NDArray[np.float32]
    """[B * V, 4]: left, top, right, bottom in pixels."""
    matrices: NDArray[np.float32] | None
    """[B * V, 3, 4], None where colours stay."""
    rest: Batch
    """All of the batch but its images."""
    faults: list[str]
    """Fetched.fault of each row."""
    routed: Counter[str]
    """How many files Pillow decoded, by dali.readable's reason."""
    frame: tuple[int, int] = (0, 0)
    """Pixels, wide and high, that hold each of the images."""
    worker: int = -1
    """Whose memory the files lie in; -1: nobody's."""


@dataclass(frozen=True)
class Failed:
    """What to raise where the batch is due, and the traceback of the process that met it."""

    error: Exception
    trace: str


def prepare(request: Request, step: int, micro: int) -> Encoded:
    """Read and check a batch; bad samples are replaced as in every engine. Raises what Request.fetch would."""
    def made(number: int) -> tuple[list[dali.Prepared], dict[str, torch.Tensor]]:
        members = request.read(number)
        views = [_view(members[ext], request.manifest.where(number, ext)) for ext in request.fields.images]
        return views, request.tensors(number, members)

    ids, valid = request.plan.slots(step, micro, request.rank)
    rows = [quarantine.fetch(request, step, index, made) for index in ids.tolist()]
    shown = np.array([row.sample for row in rows])
    chosen = request.draws(step, shown)
    views = [view for row in rows for view in row.made[0]]
    boxes = [draws.crop_box(draw.offset, view.width, view.height)
             for draw, row in zip(chosen, rows, strict=True) for view in row.made[0]]
    valid *= np.array([not row.fault for row in rows])
    return Encoded([np.frombuffer(view.data, np.uint8) for view in views], np.array(boxes, np.float32),
                   _matrices(chosen, len(request.fields.images)),
                   stack([row.made[1] for row in rows]) | {"ids": torch.from_numpy(shown),
                                                           "valid": torch.from_numpy(valid)},
                   [row.fault for row in rows], Counter(view.reason for view in views if view.reason),
                   (max((view.width for view in views), default=0), max((view.height for view in views), default=0)))


def _view(data: bytes, where: str) -> dali.Prepared:
    if data.startswith(b"GIF8"):
        whole_frame(data, where)  # which refuses it, for all engines alike
    return dali.prepared(data, where)


def _matrices(chosen: list[draws.Draw], views: int) -> NDArray[np.float32] | None:
    matrices = [draw.matrix for draw in chosen if draw.matrix is not None]
    return np.repeat(np.array(matrices, np.float32), views, axis=0) if matrices else None


class Source:
    """The rank's batches in order, made by `processes` workers, or in this process where there are none."""

    def __init__(self, request: Request, processes: int, ahead: int) -> None:
        """ahead: batches that may be taken and not yet freed."""
        self._request, self._order, self._taken = request, request.sequence(), 0
        slots = -(-ahead // max(processes, 1)) + request.job.data.prefetch
        context, parent, size = multiprocessing.get_context("fork"), os.getpid(), _slot_bytes(request)
        self._workers: list[_Worker] = []
        self._end = weakref.finalize(self, _ended, self._workers, parent)  # at the latest when this process ends
        for number in range(processes):
            memory = [mmap(-1, size) for _ in range(slots)]
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(request, number, processes, memory, theirs, parent),
                                      name=f"lfhelpers-files-{number}", daemon=True)
            process.start()
            theirs.close()  # so that its end is seen here
            self._workers.append(_Worker(process, ours, memory))

    def take(self, wait: bool) -> Encoded | Failed | None:
        """The next batch; None where it isn't there yet and `wait` is false. Raises LfError where a worker died."""
        if not self._workers:
            return _attempt(self._request, *next(self._order))
        number = self._taken % len(self._workers)
        worker = self._workers[number]
        ready = connection.wait([worker.pipe, *(each.process.sentinel for each in self._workers)], None if wait else 0)
        for other in self._workers:
            if other.process.sentinel in ready:
                raise _died(other.process)
        if not ready:
            return None
        try:
            made = pickle.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):  # it died in the middle of the message
            raise _died(worker.process) from None
        self._taken += 1
        memory = worker.memory[worker.received % len(worker.memory)]
        worker.received += 1
        if isinstance(made, Failed):
            return made
        batch, raw = made
        return _unpacked(batch, raw, memory, number)

    def free(self, batch: Encoded) -> None:
        """Give the batch's memory back: its files are read no more."""
        if batch.worker >= 0:
            with contextlib.suppress(OSError):  # it died, which `take` will say
                self._workers[batch.worker].pipe.send_bytes(b"free")

    def close(self) -> None:
        """End the workers and wait for them. Further calls do nothing."""
        self._end()


@dataclass
class _Worker:
    """A process, this end of its pipe, the memory that it fills in turn, and how many batches have come."""

    process: Any
    pipe: Any
    memory: list[mmap]
    received: int = 0


def _slot_bytes(request: Request) -> int:
    """Room for the largest batch of different samples."""
    columns = [request.manifest.fields.index(ext) for ext in request.fields.images]
    sizes = request.manifest.rows.size[:, columns].sum(1, dtype=np.int64) + _APART * len(columns)
    largest = np.partition(sizes, -min(request.plan.micro, len(sizes)))[-request.plan.micro:]
    return min(max(int(largest.sum()), 1), _LARGEST)


def _serve(request: Request, first: int, stride: int, memory: list[mmap], pipe: Any, parent: int) -> None:
    """A worker: every `stride`-th batch from the `first` on, made while the one before still waits for room."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process ends this one in its own time
    die_with_parent(parent)
    torch.set_num_threads(1)
    for number, place in enumerate(islice(request.sequence(), first, None, stride)):
        made = _attempt(request, *place)
        if number >= len(memory):
            pipe.recv_bytes()
        sent = made if isinstance(made, Failed) else _packed(made, memory[number % len(memory)])
        pipe.send_bytes(pickle.dumps(sent, pickle.HIGHEST_PROTOCOL))
    while True:
        pipe.recv_bytes()  # until it is ended: a worker that ends by itself has died


def _attempt(request: Request, step: int, micro: int) -> Encoded | Failed:
    try:
        return prepare(request, step, micro)
    except Exception as error:  # of which only our own is sure to survive the journey
        sent = RuntimeError(f"data can't be prepared: {type(error).__name__}: {error}")
        return Failed(error if isinstance(error, LfError) else sent, traceback.format_exc())


def _packed(batch: Encoded, memory: mmap) -> tuple[Encoded, _Raw]:
    """The batch with its files moved to `memory`, as (start, stop); those that find no room stay as they are."""
    files: list[Any] = []
    start = 0
    for data in batch.files:
        stop = start + len(data)
        if stop > len(memory):
            files.append(data)
        else:
            memory[start:stop] = data
            files.append((start, stop))
            start = stop + _APART
    raw = {name: (value.dtype, value.shape, _bytes(value).numpy()) for name, value in batch.rest.items()}
    return replace(batch, files=files, rest={}), raw


def _unpacked(batch: Encoded, raw: _Raw, memory: mmap, worker: int) -> Encoded:
    whole = np.frombuffer(memory, np.uint8)
    files = [whole[slice(*data)] if isinstance(data, tuple) else data for data in batch.files]
    rest = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape, _) in raw.items()}
    for name, value in rest.items():
        _bytes(value).copy_(torch.from_numpy(raw[name][2]))
    return replace(batch, files=files, rest=rest, worker=worker)


def _bytes(value: torch.Tensor) -> torch.Tensor:
    """uint8 [n], a view where the tensor is contiguous; torch's own way of pickling costs up to 0.4 ms a tensor."""
    return value.contiguous().flatten().view(torch.uint8)


def _ended(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:  # a process forked later, which merely forgets its copy
        return
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_GRACE)
        worker.process.kill()
        worker.process.join()
        worker.process.close()
        worker.pipe.close()
    workers.clear()


def _died(process: Any) -> LfError:
    process.join(1)  # so that its exit code is known
    code = process.exitcode
    what = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
    return LfError(f"a data worker died ({what}); if it ran out of memory, try fewer data.workers, a smaller "
                   "data.depth or data.prefetch.")
