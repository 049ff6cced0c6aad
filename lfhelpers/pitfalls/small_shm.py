"""Shared memory that is smaller than the batches in it: the write past its end kills the worker, without a word."""

from __future__ import annotations

import faulthandler
import functools
import mmap
import os

from lfhelpers.data.ring import Ring
from lfhelpers.errors import LfError
from lfhelpers.measure import isolated
from lfhelpers.measure.hardware import memory_bytes
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "after some minutes a data worker is 'killed by signal: Bus error', and the job hangs or ends",
    "/dev/shm has 64 MB in many containers; a file there may be made larger, and fails where its pages are written",
    "take all of the memory before the first batch, or refuse; lfhelpers' rings do, and need no /dev/shm",
    "batches that were made before it ended")
BATCHES, FIT = 8, 5
"""Batches that the workers write, and those for which there is memory."""


def break_it() -> float:
    """Batches until the worker is dead."""
    return float(_written()[0])


def detect(broken: bool = True) -> str:
    """The sentence with which a ring that is too large is refused; empty for one that fits."""
    size = memory_bytes() if broken else mmap.PAGESIZE
    try:
        Ring(BATCHES, (size,)).close()
    except LfError as error:
        return str(error)
    return ""


def fix_it() -> float:
    """Batches that were made before the same shortage is told: the ring is refused before the first one."""
    return 0.0 if detect() else float(BATCHES)


@functools.cache
def _written() -> tuple[int, str]:
    """(batches written, how the worker ended)."""
    count = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        isolated.call(_write, count)
        end = ""
    except LfError as error:
        end = str(error)
    return count[0], end


def _write(count: mmap.mmap) -> None:
    """In a process of its own: batches of a page each into a segment that ends too early, as a full /dev/shm does."""
    faulthandler.disable()  # the death is meant, and needs no dump
    segment = os.memfd_create("small")
    os.ftruncate(segment, BATCHES * mmap.PAGESIZE)
    memory = mmap.mmap(segment, BATCHES * mmap.PAGESIZE)
    os.ftruncate(segment, FIT * mmap.PAGESIZE)
    for batch in range(BATCHES):
        memory[batch * mmap.PAGESIZE] = 1
        count[0] = batch + 1
