"""Fetching shards before they are read: what the plan needs next, and the process that has it fetched.

From the order of samples follows, for each shard, where it is first and last read. So the shards needed next are known
exactly, for every shuffle alike, and so is how many must be here at once: all of them for "global", one window for
"block". Readers leave the furthest place they have come to in shared memory.

A process of its own does the work, one a rank. Threads of the training process would take turns with it for the
interpreter, and would be missing, with their locks held, in the workers forked later; threads in every worker would
not know the job's place. It is forked like the workers, so the same rule holds: before the process uses CUDA. Should
it die, readers fetch for themselves, and nothing but time is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lfhelpers.data.cache import Cache, NoRoom
from lfhelpers.data.manifest import Shard
from lfhelpers.data.order import Plan
from lfhelpers.errors import LfError
from lfhelpers.processes import die_with_parent

STREAMS = 4  # transfers at a time on a host
PAUSE = 0.1  # seconds between looks at the readers' place when nothing can be fetched

Positions = NDArray[np.int64]


class Schedule:
    """Where the plan reads each shard, as positions counted over epochs: epoch x samples + place in its order."""

    def __init__(self, plan: Plan, sizes: Sequence[int], start: int, stop: int, spread: int) -> None:
        """Steps start..stop-1; sizes: bytes of each shard; spread: samples by which readers may lie apart."""
        assert plan.shard_of is not None
        self._plan = dataclasses.replace(plan)  # with an order of its own: the engines' must not be thrown out
        self._shard_of, self.sizes, self.spread = plan.shard_of, np.asarray(sizes, dtype=np.int64), spread
        self.start, self.stop = self._begin(start), self._begin(stop)
        self._lock = threading.Lock()
        self._epoch = functools.lru_cache(maxsize=3)(self._spans_and_places)

    def peak(self) -> int:
        """Bytes of the shards that lie between their first and their last read at one moment, at most in an epoch."""
        epoch = self.start // self._plan.samples
        first, last = self._spans(self._plan.order(epoch), 0)
        change = np.zeros(self._plan.samples + 1, dtype=np.int64)
        read = last >= 0
        np.add.at(change, first[read], self.sizes[read])
        np.add.at(change, last[read] + 1, -self.sizes[read])
        return int(change.cumsum().max())

    def wanted(self, place: int, limit: int) -> list[int]:
        """The shards that readers at `place` need next, soonest first: as many as `limit` bytes hold."""
        low = max(place - self.spread, self.start)
        found: dict[int, None] = {}
        for epoch in range(low // self._plan.samples, min(low // self._plan.samples + 2, self._last_epoch() + 1)):
            first, last, _ = self._epoch(epoch)
            ahead = np.flatnonzero(last >= low)
            for shard in ahead[np.argsort(first[ahead], kind="stable")].tolist():
                if shard not in found:
                    limit -= int(self.sizes[shard])
                    if limit < 0:
                        return list(found)
                    found[shard] = None
        return list(found)

    def position(self, index: int, near: int) -> int:
        """Where sample `index` is read: in the epoch of `near`, or in the next one if that lies far behind."""
        samples = self._plan.samples
        epoch = near // samples
        here = epoch * samples + int(self._epoch(epoch)[2][index])
        if here + samples // 2 < near and epoch < self._last_epoch():
            here = (epoch + 1) * samples + int(self._epoch(epoch + 1)[2][index])
        return here

    def _begin(self, step: int) -> int:
        steps, samples = self._plan.steps_per_epoch, self._plan.samples
        return step // steps * samples + step % steps * self._plan.global_batch

    def _last_epoch(self) -> int:
        return max(self.stop - 1, self.start) // self._plan.samples

    def _spans_and_places(self, epoch: int) -> tuple[Positions, Positions, NDArray[np.int32]]:
        """(first, last) position of each shard, -1 where it isn't read, and the place of each sample in the order."""
        with self._lock:  # the plan keeps one order, and threads must not take it from each other
            order = self._plan.order(epoch)
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        offset, used = epoch * len(order), self._plan.steps_per_epoch * self._plan.global_batch
        begin, end = max(self.start - offset, 0), min(self.stop - offset, used, len(order))
        return *self._spans(order[begin:end], offset + begin), places

    def _spans(self, order: Positions, offset: int) -> tuple[Positions, Positions]:
        shards, places = self._shard_of[order], offset + np.arange(len(order))
        first, last = np.full(len(self.sizes), np.iinfo(np.int64).max), np.full(len(self.sizes), -1)
        np.minimum.at(first, shards, places)
        np.maximum.at(last, shards, places)
        return first, last


class Ahead:
    """A job's place in its plan, shared with the workers forked after it was made, and its fetching process."""

    def __init__(self, cache: Cache, shards: Sequence[Shard], schedule: Schedule) -> None:
        """Starts fetching. Raises LfError where the cache's limit is below what is read at the same time."""
        _check(cache, schedule)
        self._cache, self._schedule, self._shards = cache, schedule, {shard.name: shard for shard in shards}
        self._names = [shard.name for shard in shards]
        self._lock, self._taken = threading.Lock(), set[str]()
        self._place = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._place[0] = schedule.start
        self._last = (-1, [""])
        context = multiprocessing.get_context("fork")
        self._process: BaseProcess = context.Process(target=self._run, args=(os.getpid(),), daemon=True)
        self._process.start()

    def note(self, index: int) -> None:
        """A reader is at this sample. One far from the others' place is out of the plan, and moves nothing."""
        place = self._place[0]
        here = self._schedule.position(index, place)
        if place < here <= place + 2 * self._schedule.spread:
            self._place[0] = here  # readers may overwrite each other, which the next sample mends

    def names(self) -> list[str]:
        """The shards that are needed next, soonest first."""
        place = self._place[0]
        if self._last[0] != place:
            self._last = place, [self._names[shard] for shard in self._schedule.wanted(place, self._cache.limit)]
        return self._last[1]

    def stop(self) -> None:
        """End the fetching process. Further calls do nothing."""
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()
            self._cache.sweep()

    def _run(self, parent: int) -> None:
        """The process: streams in threads, and the lease kept up to date, until it is ended."""
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and stops this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        for _ in range(math.ceil(STREAMS / ranks)):
            threading.Thread(target=self._stream, daemon=True).start()
        lease = self._cache.lease()
        while True:
            with contextlib.suppress(OSError):
                lease.hold(self.names())
            time.sleep(PAUSE)

    def _stream(self) -> None:
        """A thread: fetch the first missing shard that nobody fetches, again and again."""
        while True:
            try:
                here = self._cache.present()
                if not any(name not in here and self._fetch(name) for name in self.names()):
                    time.sleep(PAUSE)
            except (NoRoom, OSError):  # whatever is wrong with the disk, a reader will say
                time.sleep(PAUSE)

    def _fetch(self, name: str) -> bool:
        """Whether the shard was fetched; one that could not be had is not tried again by this process."""
        with self._lock:
            if name in self._taken:
                return False
            self._taken.add(name)
        try:
            with self._cache.fetch(self._shards[name], self.names, ahead=True) or contextlib.nullcontext() as file:
                fetched = file is not None
        except LfError:  # a reader will meet it too, if it lasts, and say so
            return False
        except BaseException:
            self._taken.discard(name)
            raise
        self._taken.discard(name)
        return fetched


class FollowedLoader:
    """A loader for which shards are fetched ahead while it is read; closing it ends both."""

    def __init__(self, make: Callable[[], Any], stop: Callable[[], None]) -> None:
        self._stop = stop
        try:
            self._loader = make()
        except BaseException:
            stop()
            raise

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._loader
        finally:
            self.close()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def close(self) -> None:
        """Close the loader and end the fetching. Further calls do nothing."""
        self._loader.close()
        self._stop()

    def __enter__(self) -> FollowedLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(cache: Cache, schedule: Schedule) -> None:
    peak = schedule.peak()
    if peak > cache.limit:
        raise LfError(f"data.cache_gb = {cache.limit / 1e9:g} is too small: this order reads {peak / 1e9:.3g} GB of "
                      f"shards at the same time; give more, take data.shuffle='block', or pack smaller shards.")
