"""Files from an address, streamed, retried, and never waited for without end.

Each attempt reads in a thread of its own, which is abandoned when too little has come for too long: that holds for
every protocol alike, where time limits of their own differ from driver to driver and some have none. A broken transfer
goes on where it stopped; since a server may ignore that wish, only the size and the sha256 say that a file is right.
Loaders that stream without a copy can do neither, and lose the rest of a shard with a warning.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from lfhelpers.data.address import BLOCK, Address, is_hopeless, open_at, reason
from lfhelpers.errors import LfError

CHUNK = 2**20  # bytes handed over at once
EARNED = 2**24  # bytes of progress after which a broken connection is not counted as a failure

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How often and how long: `tries` in all, pauses that double from `first` to `longest` seconds, with jitter.

    stall: seconds in which at least BLOCK (4 MiB), or the rest of the file, must come.
    seed: makes the jitter repeatable; none given: it differs between processes, which is what it is for.
    """

    tries: int = 5
    first: float = 0.5
    longest: float = 30.0
    stall: float = 30.0
    seed: int | None = None

    def pause(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure (from 1): half to all of the doubled pause."""
        draw = random.Random() if self.seed is None else random.Random(self.seed * 1000 + failures)
        return min(self.longest, self.first * 2.0 ** (failures - 1)) * draw.uniform(0.5, 1.0)


def persist(what: str, address: Address, patience: Patience, attempt: Callable[[], T],
            forgiven: Callable[[], bool] = lambda: False) -> T:
    """attempt(), again after a growing pause while it fails. Raises LfError after `tries` failures or a hopeless one.

    what: begins the sentence, such as "shard a.tar". forgiven: asked after each failure whether it is not to count.
    """
    failures = 0
    while True:
        try:
            return attempt()
        except LfError:
            raise
        except Exception as error:  # each driver has its own exceptions
            failures += not forgiven()
            if is_hopeless(error) or failures >= patience.tries:
                raise LfError(f"{what} can't be fetched from {address}: {reason(error, address)} ({failures} "
                              f"{'tries' if failures > 1 else 'try'}); see that it is whole there and start again: "
                              "all that has been fetched is kept.") from error
        time.sleep(patience.pause(max(failures, 1)))


def fetch(address: Address, name: str, size: int, sha256: str, descriptor: int, patience: Patience) -> None:
    """Write the file `name` to `descriptor`, `size` bytes that have this sha256, or raise LfError naming both."""
    copy = _Copy(descriptor, size)

    def attempt() -> None:
        if copy.offset < size:
            with contextlib.closing(stream(address, name, copy.offset, patience.stall)) as chunks:
                copy.take(chunks)
        if copy.digest.hexdigest() != sha256:
            copy.resumes = False
            raise ValueError("its sha256 is not the manifest's")

    persist(f"shard {name}", address, patience, attempt, copy.after_failure)


def stream(address: Address, name: str, offset: int, stall: float) -> Generator[bytes, None, None]:
    """The file's bytes from `offset` on in chunks; TimeoutError when too few come in `stall` seconds."""
    items: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=8)
    stop = threading.Event()
    threading.Thread(target=_pump, args=(address, name, offset, stall, items, stop), daemon=True).start()
    deadline, arrived = time.monotonic() + stall, 0
    try:
        while True:
            try:
                item = items.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"too little came in {stall:g} s") from None
            if item is None:
                return
            if isinstance(item, BaseException):
                try:
                    raise item
                finally:
                    del item  # its traceback holds this frame, and would be held by it
            yield item
            arrived += len(item)
            if arrived >= BLOCK:
                deadline, arrived = time.monotonic() + stall, 0
    finally:
        stop.set()


class _Copy:
    """What has come of one file so far, written and hashed; `resumes` until that has proved to go wrong."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size, self.resumes = descriptor, size, True
        self.offset, self.settled, self.digest = 0, 0, hashlib.sha256()

    def take(self, chunks: Iterator[bytes]) -> None:
        """Append all chunks. Raises ValueError where fewer or more bytes come than the file has."""
        for chunk in chunks:
            if self.offset + len(chunk) > self.size:
                self.resumes = False  # the server sent the file from its start, or another one
                raise ValueError(f"more came than the manifest's {self.size} bytes")
            self._write(chunk)
        if self.offset < self.size:
            raise ValueError(f"the connection ended after {self.offset} of {self.size} bytes")

    def after_failure(self) -> bool:
        """Begin again from the first byte unless it resumes; whether so much came that the failure does not count."""
        gained, self.settled = self.offset - self.settled, self.offset
        if not self.resumes:
            self.offset, self.settled, self.digest = 0, 0, hashlib.sha256()
        return self.resumes and gained >= EARNED

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            try:
                written = os.pwrite(self.descriptor, view, self.offset)
            except OSError as error:
                full = "make room, or give a smaller data.cache_gb" if error.errno == errno.ENOSPC else "mend the disk"
                raise LfError(f"the cache of remote shards can't be written: {error.strerror}; {full}.") from error
            self.digest.update(view[:written])
            self.offset += written
            view = view[written:]


def _pump(address: Address, name: str, offset: int, stall: float, items: queue.Queue[Any], stop: threading.Event
          ) -> None:
    """The thread: put chunks, then None or what was raised, unless nobody waits any more."""

    def put(item: bytes | BaseException | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                items.put(item, timeout=0.2)
                return

    try:
        with open_at(address, name, offset, stall) as read:
            while not stop.is_set() and (chunk := read(CHUNK)):
                put(chunk)
        put(None)
    except BaseException as error:
        put(error)
