"""The first level of `two_level`: a thread that has batches decoded into free slots, and hands them on in order.

It is one thread, whatever the number of decoding threads behind it, so slots are taken in the order in which batches
are wanted: the batch that the consumer waits for always has one, and nothing can lock up.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from multiprocessing.connection import Pipe
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lfhelpers.data import augment, level_two
from lfhelpers.data.level_two import Task
from lfhelpers.data.loader import Batch, Request
from lfhelpers.data.meter import Meter
from lfhelpers.data.ring import Ring
from lfhelpers.data.spawned import Spawned

_FLYING = 2  # batches that are decoded at a time, so that no thread waits for the last row of one
_JOIN = 5.0  # seconds that a read may take at the end


class Pool(Protocol):
    """What level one needs of a decoder; decoding.DecodePool."""

    def start(self, step: int, micro: int, out: NDArray[np.uint8]) -> Future[tuple[Batch, list[str]]]: ...
    def close(self) -> None: ...


class _Begun(NamedTuple):
    number: int
    step: int
    micro: int
    slot: int
    result: Future[tuple[Batch, list[str]]]


class Started(NamedTuple):
    """A batch on its way: which one, its slot, MixUp's weight, the tensors that have no pixels, the rows' faults."""

    step: int
    micro: int
    slot: int
    weight: float
    batch: Batch
    faults: list[str]


class LevelOne(threading.Thread):
    """Decodes batches in order into free slots, and gives each to its process, or straight to the consumer."""

    def __init__(self, request: Request, pool: Pool, rings: list[Ring], processes: list[Spawned], work: str | None,
                 meter: Meter) -> None:
        super().__init__(name="lfhelpers-level-one", daemon=True)
        self.started: dict[int, Started] = {}
        self.error: BaseException | None = None
        self.done, self._done = Pipe(duplex=False)
        self._request, self._pool, self._processes, self._meter = request, pool, processes, meter
        self._pixels, self._ids = rings
        self._work = level_two.make(level_two.settings(request, work)) if work and not processes else None
        self._mixup = request.job.data.mixup if work else 0.0

    def run(self) -> None:
        """Until all is decoded, the ring is stopped, or something is amiss: the consumer finds that in `error`."""
        flying: deque[_Begun] = deque()
        try:
            for number, (step, micro) in enumerate(self._request.sequence()):
                slot = self._room(flying)
                if slot is None:
                    return
                flying.append(_Begun(number, step, micro, slot, self._pool.start(step, micro, self._pixels[slot])))
            while flying:
                self._hand_on(flying.popleft())
        except BaseException as error:
            self.error = error
        finally:
            self._done.close()

    def stop(self) -> None:
        """End the decoding and the thread, and wait for that."""
        self._pixels.stop()
        self._pool.close()
        if self is not threading.current_thread():  # in which the garbage collector may run
            self.join(_JOIN)
        self._pool.close()  # again: the thread may have been just about to start the pool's first batch
        self.done.close()

    def _room(self, flying: deque[_Begun]) -> int | None:
        """A slot, once as many batches have been handed on as that takes; None when the ring is stopped."""
        if len(flying) == _FLYING:
            self._hand_on(flying.popleft())
        while True:
            with self._meter.timed("decode", "blocked_out"):
                slot = self._pixels.take(patient=not flying)
            if slot is not None or not flying:
                return slot
            self._hand_on(flying.popleft())

    def _hand_on(self, begun: _Begun) -> None:
        """The oldest batch that is being decoded goes to its process, or straight to the consumer."""
        with self._meter.timed("decode", "busy"):
            batch, faults = begun.result.result()
        plan, (number, step, micro, slot, _) = self._request.plan, begun
        epoch = plan.epoch(step)
        weight = augment.share(self._mixup, plan.seed, epoch, step, micro) if self._mixup else 1.0
        self._ids[slot][:] = batch["ids"].numpy()
        self.started[number] = Started(step, micro, slot, weight, batch, faults)
        self._send(Task(number, slot, epoch, weight))

    def _send(self, task: Task) -> None:
        if self._processes:
            try:
                self._processes[task.number % len(self._processes)].pipe.send(tuple(task))
            except OSError:  # it has died, of which its pipe tells the consumer
                self._pixels.stop()
        elif self._work:
            reply = level_two.attempt(self._work, self._pixels[task.slot], self._ids[task.slot], task)
            self._done.send(tuple(reply))
        else:
            self._done.send((task.number, 0.0, 0.0, ""))
