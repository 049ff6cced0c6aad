"""How fast a folder's disk reads: long sequential reads against small random ones, as shards and loose files cause.

The measurement reads a temporary file that it writes there first, so it needs no data set, and it works around the page
cache where the system allows; where it doesn't, the figures are those of memory, and the result says so.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from lfhelpers.errors import LfError

MIB = 2**20
CHUNK = 4 * MIB
"""Bytes of a sequential read."""
SMALL = 64 * 1024
"""Bytes of a random read: about one JPEG of a camera."""
LARGEST, SMALLEST = 256 * MIB, 16 * MIB
"""Bytes of the temporary file: as much of the larger as a third of the time allows to write."""


@dataclass(frozen=True)
class DiskSpeed:
    """Reads of one folder, one request at a time (queue depth 1): MB/s are 10^6 bytes a second.

    `cache` says what the figures are worth: `bypassed` (direct reads), `dropped` (the file was evicted from the page
    cache first) or `in use` (they show memory, not the disk).
    """

    sequential_mb_s: float
    random_mb_s: float
    random_iops: float
    cache: str
    file_mb: int
    filesystem: str


def read_speed(folder: str | os.PathLike[str], seconds: float = 3.0) -> DiskSpeed:
    """Measure reads in `folder` for about `seconds`, a third of them spent on writing the file that is read.

    The file has no name while it is in use, so nothing is left behind. LfError where the folder can't be written.
    """
    path = Path(folder).absolute()
    try:
        with _temporary(path) as (write, read, direct):
            size = _fill(write, path, seconds / 3)
            filesystem = _filesystem(path)
            cache = _evict(write, read, direct, filesystem)
            buffer = mmap.mmap(-1, CHUNK)  # page-aligned, as direct reads demand
            sequential = _rate(read, buffer, CHUNK, range(0, size, CHUNK), seconds / 3)
            if not direct:
                _evict(write, read, direct, filesystem)
                _advise(read, "POSIX_FADV_RANDOM")  # read-ahead would fetch the neighbours too
            offsets = random.Random(0).sample(range(0, size, SMALL), size // SMALL)
            small = _rate(read, buffer, SMALL, offsets, seconds / 3)
    except OSError as error:
        raise LfError(f"the disk speed of {path} can't be measured: {error.strerror}; "
                      "give a folder that exists, can be written and has 300 MB free.") from error
    return DiskSpeed(round(sequential / 1e6, 1), round(small / 1e6, 1), round(small / SMALL, 1), cache, size // MIB,
                     filesystem)


def drop_cached(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Ask the system to forget the files' pages, so that the next read comes from the disk (advice, on Linux alone)."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # pages that aren't on the disk yet would stay
        _advise(descriptor, "POSIX_FADV_DONTNEED")
        os.close(descriptor)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[tuple[int, int, bool]]:
    """(descriptor for writing, for reading, whether reads are direct) of a nameless file in `folder`."""
    with contextlib.ExitStack() as stack:
        write, name = tempfile.mkstemp(prefix=".lfhelpers-disk-", dir=folder)
        stack.callback(os.close, write)
        try:
            read, direct = _open(name)
        finally:
            os.unlink(name)
        stack.callback(os.close, read)
        yield write, read, direct


def _open(name: str) -> tuple[int, bool]:
    """(descriptor, True) for direct reads where the file system has them, else (descriptor, False)."""
    with contextlib.suppress(OSError, AttributeError):
        return os.open(name, os.O_RDONLY | os.O_DIRECT), True
    return os.open(name, os.O_RDONLY), False


def _fill(write: int, folder: Path, seconds: float) -> int:
    """Write random bytes (a disk that compresses must not gain) until time or size is up; returns the size in bytes."""
    block = random.Random(0).randbytes(SMALLEST)
    end, size, room = time.perf_counter() + seconds, 0, psutil.disk_usage(str(folder)).free // 2
    while size < SMALLEST or (size < min(LARGEST, room) and time.perf_counter() < end):
        view = memoryview(block)
        while view:
            view = view[os.write(write, view):]
        os.fsync(write)
        size += SMALLEST
    return size


def _evict(write: int, read: int, direct: bool, filesystem: str) -> str:
    """Get the page cache out of the way; says how far that went, in the words of DiskSpeed.cache."""
    if filesystem in ("tmpfs", "ramfs"):
        return "in use"
    _advise(write, "POSIX_FADV_DONTNEED")
    if direct:
        return "bypassed"
    try:
        os.preadv(read, [bytearray(4096)], 0, os.RWF_NOWAIT)  # succeeds only on what is still cached
    except BlockingIOError:
        return "dropped"
    except (OSError, AttributeError):  # the file system can't tell, so the advice has to be trusted
        return "dropped" if hasattr(os, "posix_fadvise") else "in use"
    return "in use"


def _advise(descriptor: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(descriptor, 0, 0, getattr(os, advice))


def _rate(read: int, buffer: mmap.mmap, length: int, offsets: Iterable[int], seconds: float) -> float:
    """Bytes a second over reads of `length` bytes at `offsets`, ended by `seconds` or the last offset."""
    view = memoryview(buffer)[:length]
    start, total = time.perf_counter(), 0
    for offset in offsets:
        total += os.preadv(read, [view], offset)
        if time.perf_counter() - start > seconds:
            break
    return total / (time.perf_counter() - start)


def _filesystem(folder: Path) -> str:
    """The file system's type, such as ext4 or nfs4, by the longest mount point above `folder`."""
    mounts = [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)
              if folder.resolve().is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
