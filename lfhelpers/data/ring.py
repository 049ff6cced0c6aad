"""A ring of equal slots in memory that spawned processes share: batches change hands without a copy or a pickle.

A pickled queue copies a batch four times and through a pipe; here a batch lies where it was made, and only the number
of its slot travels. The memory is an anonymous file (memfd_create), passed on by its descriptor. It has no name, so a
killed process leaves nothing behind, nobody can unlink it too early (Python's resource tracker would), and the size of
/dev/shm, 64 MB in many containers, doesn't bound it; memory does, and is taken in full before the first batch. The
price: as many bytes as the ring has slots are held all the time, and it is for Linux alone.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import queue
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

from lfhelpers.errors import LfError
from lfhelpers.measure.hardware import GIB, memory_bytes

MOST = 0.5  # of the memory that is free: the job needs some too


class Ring:
    """`slots` arrays of `shape`, seen as ring[slot] by every process that has the descriptor.

    The process that made it hands out slots: `take` waits for a free one, which is all the back-pressure there is, and
    `give` frees it. Raises LfError where memory is too small, or there is no Linux.
    """

    def __init__(self, slots: int, shape: Sequence[int], dtype: DTypeLike = np.uint8, fd: int | None = None) -> None:
        """fd: a descriptor inherited from the maker, whose slots and shape these are; `of` takes all from its spec."""
        self.shape, self.dtype, self.slots = tuple(shape), np.dtype(dtype), slots
        self._items = math.prod(self.shape)
        self._stride = max(-(-self._items * self.dtype.itemsize // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        self.nbytes = slots * self._stride
        self.fd = _made(self.nbytes, f"{slots:,} slots of {self._stride / 2**20:,.1f} MiB") if fd is None else fd
        # The pages are mapped now: a fault at each first touch would cost a quarter of a copy.
        self._memory = mmap.mmap(self.fd, self.nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._stopped = False
        for slot in range(slots):
            self._free.put(slot)

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Ring:
        """The ring that a parent's `spec` tells of, in a process that inherited its descriptor."""
        return cls(**spec)

    @property
    def spec(self) -> dict[str, Any]:
        """What another process needs to see the ring, besides the descriptor `fd` itself; goes into JSON."""
        return {"slots": self.slots, "shape": list(self.shape), "dtype": self.dtype.str, "fd": self.fd}

    def __getitem__(self, slot: int) -> NDArray[Any]:
        """The slot's array, without a copy; it stays valid after close(), for as long as it is held."""
        flat = np.frombuffer(self._memory, self.dtype, self._items, slot * self._stride)
        return flat.reshape(self.shape)

    def take(self, patient: bool = True) -> int | None:
        """A free slot, waited for; None once the ring is stopped, and, if not `patient`, where none is free now."""
        try:
            slot = self._free.get(block=patient)
        except queue.Empty:
            return None
        if self._stopped:
            self._free.put(None)  # for whoever waits besides
            return None
        return slot

    def give(self, slot: int) -> None:
        """The slot is free again: nobody reads it any more."""
        self._free.put(slot)

    def stop(self) -> None:
        """No slot is handed out any more, and who waits for one goes on at once."""
        self._stopped = True
        self._free.put(None)

    def close(self) -> None:
        """Give the memory back. Further calls do nothing."""
        if self.fd < 0:
            return
        self.stop()
        with contextlib.suppress(BufferError):  # an array of it is still held: it goes with that one
            self._memory.close()
        os.close(self.fd)
        self.fd = -1


def need(size: int, what: str) -> None:
    """Raises LfError where `size` bytes are more than half of the memory that is free; `what` says what they are."""
    free = min(memory_bytes(), psutil.virtual_memory().available)
    if size > MOST * free:
        raise LfError(f"a ring of {what} takes {size / GIB:.2f} GiB of shared memory, more than half of the "
                      f"{free / GIB:.2f} GiB that are free here; take a smaller data.depth or batch.micro.")


def _made(size: int, what: str) -> int:
    if not hasattr(os, "memfd_create"):
        raise LfError("a ring in shared memory needs Linux; take data.loader='threads' or 'webdataset' here.")
    need(size, what)
    fd = os.memfd_create("lfhelpers-ring", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)  # in full, now: memory that can't be had later would kill with SIGBUS
    except OSError as error:
        os.close(fd)
        raise LfError(f"a ring of {what} can't be made, {size / GIB:.2f} GiB of shared memory: {error.strerror}; take "
                      "a smaller data.depth or batch.micro.") from error
    return fd
