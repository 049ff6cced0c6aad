"""Two levels before the trainer: threads decode, processes augment, and a ring of shared memory takes batches along.

    one thread: DecodePool --> slot --> [process (batch mod W): RandAugment, MixUp, in place] --> copied out, in order

It is the article's two-level queue with a ring in place of its pickles. It pays where augmentation must run on CPU
cores and holds the interpreter, or keeps the device from training; with aug_on='device', or nothing to augment, the
second level is left out. A batch stays in one slot of a ring of 2 x data.depth, which both levels share: a level that
lags finds its room taken, and the other one waits.

What the trainer gets is copied out of the slot, into page-locked memory where there is a GPU: 0.1 ms a megabyte. The
slot is free at once then, and a batch may be held for as long as one likes; lending out page-locked slots would need an
event behind each copy to the device, and would hand a batch that is kept too long another one's pixels.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from lfhelpers.data import augment_device, level_two, quarantine
from lfhelpers.data.decoding import DecodePool
from lfhelpers.data.level_one import LevelOne, Pool, Started
from lfhelpers.data.level_two import Reply
from lfhelpers.data.loader import CLOSED, Batch, Request
from lfhelpers.data.meter import Meter
from lfhelpers.data.ring import Ring
from lfhelpers.data.spawned import Spawned
from lfhelpers.errors import LfError

SECOND = 3  # one worker in three is a process: decoding 640x480 takes 1.7 ms of a core, two operations at 224x224 0.9


def make(request: Request, pool: Callable[[Request, int], Pool] = DecodePool, work: str = level_two.STANDARD
         ) -> TwoLevel:
    """A loader whose batches hold images as uint8 [B, V, P, P, 3], pinned where asked for and there is a GPU.

    work: what the second level does, "module:function" as in level_two.make. Raises LfError where memory is too small.
    """
    return TwoLevel(request, pool, work)


def split(workers: int, second: bool) -> tuple[int, int]:
    """(decoding threads, augmenting processes) out of data.workers: a third are processes, and one of each at least.

    0 workers: the training process does both, one batch at a time behind the other.
    """
    processes = max(workers // SECOND, 1) if second and workers else 0
    return max(workers - processes, 1) if workers else 0, processes


class TwoLevel:
    """Delivers the batches once; `meter` tells how full its queues were, `stats` sums that up."""

    def __init__(self, request: Request, pool: Callable[[Request, int], Pool], work: str) -> None:
        data, plan, size = request.job.data, request.plan, request.fields.size
        second = data.aug_on == "workers" and bool(data.rand_augment or data.mixup)
        self.threads, self.processes = split(request.workers(), second)
        self.meter = Meter(augment=max(self.processes, 1))
        self._copying = 0.0
        self._request, self._pin = request, request.pin()
        self._record = quarantine.Record(request, request.bad) if request.bad else None
        shape = (plan.micro, len(request.fields.images), size, size, 3)
        with ExitStack() as undo:
            self._rings = [Ring(2 * data.depth, shape), Ring(2 * data.depth, (plan.micro,), np.int64)]
            for ring in self._rings:
                undo.callback(ring.close)
            self._workers: list[Spawned] = []
            told = level_two.settings(request, work)
            for _ in range(self.processes):
                self._workers.append(Spawned("lfhelpers.data.level_two:serve", self._rings, told))
                undo.callback(self._workers[-1].end)
            decoder = pool(request, self.threads)
            self._one = LevelOne(request, decoder, self._rings, self._workers, work if second else None, self.meter)
            self._one.start()
            undo.callback(self._one.stop)
            # Once: at close(), when the loader is forgotten, or when the interpreter ends.
            self._end = weakref.finalize(self, undo.pop_all().close)
        self._mixes = second and bool(data.mixup)
        self._ready: dict[int, Reply] = {}
        self._sources: dict[Connection, Spawned | None] = {each.pipe: each for each in self._workers}
        self._sources[self._one.done] = None

    def __iter__(self) -> Iterator[Batch]:
        try:
            for number in range(len(self)):
                yield self._next(number)
        finally:
            self.close()

    def __len__(self) -> int:
        return self._request.batches()

    def close(self) -> None:
        """End the thread and the processes, and give the memory back. Further calls do nothing."""
        self._end()

    def __enter__(self) -> TwoLevel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> dict[str, Any]:
        """Meter.stats, what copying a batch out costs, and what the loader is made of."""
        found, ring = self.meter.stats(), self._rings[0]
        return found | {"copy_ms": 1e3 * self._copying / max(found["batches"], 1), "threads": self.threads,
                        "processes": self.processes, "slots": ring.slots, "ring_mib": ring.nbytes / 2**20}

    def _next(self, number: int) -> Batch:
        if not self._end.alive:
            raise LfError(CLOSED)
        began = time.perf_counter()
        self._collect(0)
        ready = len(self._ready)
        depths = {"decoded": len(self._one.started) - ready, "ready": ready}
        while number not in self._ready:
            if self._one.done not in self._sources and number not in self._one.started:
                raise self._one.error or LfError("the thread that decodes ended too early.")
            self._collect(None)
        reply, started = self._ready.pop(number), self._one.started.pop(number)
        if reply.error:
            raise level_two.failed(reply, started.step, started.micro)
        if self._record:
            self._record(started.step, started.micro, started.faults)
        batch = self._copied(started)
        self.meter.got(time.perf_counter() - began, depths)  # with the copy: the consumer waits for that, too
        return batch

    def _collect(self, timeout: float | None) -> None:
        """Take all replies that are there; None: wait for one. Raises LfError at once where a process has died."""
        for source in wait(list(self._sources), timeout):
            assert isinstance(source, Connection)
            worker = self._sources[source]
            try:
                reply = Reply(*source.recv())
            except (EOFError, ConnectionError):
                if worker:
                    raise self._died(worker) from None
                del self._sources[source]  # level one is through
                continue
            self._ready[reply.number] = reply
            if reply.busy:
                self.meter.spent("augment", "busy", reply.busy)
                self.meter.spent("augment", "blocked_in", reply.waited)

    def _copied(self, started: Started) -> Batch:
        began, slot = time.perf_counter(), torch.from_numpy(self._rings[0][started.slot])
        images = torch.empty(slot.shape, dtype=slot.dtype, pin_memory=self._pin).copy_(slot)
        self._rings[0].give(started.slot)
        batch = dict(started.batch)
        if self._mixes:
            batch |= augment_device.mixing(len(images), started.weight)
        if self._pin:
            batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
        self._copying += time.perf_counter() - began
        return batch | {"images": images}

    def _died(self, worker: Spawned) -> LfError:
        place = self._workers.index(worker)
        held = [number for number in list(self._one.started) if number % len(self._workers) == place
                and number not in self._ready]
        batch = self._one.started[min(held)] if held else None
        where = f"step {batch.step}, micro-batch {batch.micro}" if batch else "no batch"
        return LfError(f"process {place + 1} of {len(self._workers)} of the second level died with {where} in hand: "
                       f"{worker.cause()}; if it ran out of memory, try fewer data.workers or a smaller batch.micro.")
