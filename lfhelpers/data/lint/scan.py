"""A shard's bytes, read once from front to back in large pieces, or jumped through from header to header.

Where nothing needs the data (no checksum, no decoding) most of it is never read; otherwise reads are sequential and
large, which is what disks do fastest, and hashing goes along. Memory is one buffer, whatever the shard's size.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 4 * 2**20
"""Bytes of a sequential read."""
HEAD, NEAR = 4096, 64 * 1024
"""Bytes read behind a jump: a page. A jump shorter than NEAR is followed by a read of 4 x NEAR instead, since a disk
needs about as long to find a place as to read so much."""

_PACKED: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


def opened(path: Path) -> tuple[BinaryIO, Any]:
    """(the file, the file of its unpacked bytes): the same one twice, unless it is compressed with gzip, bz2 or xz."""
    raw: BinaryIO = path.open("rb", buffering=0)
    start = raw.read(6)
    raw.seek(0)
    opener = next((opener for magic, opener in _PACKED.items() if start.startswith(magic)), None)
    return raw, opener(raw) if opener else raw


class Data:
    """A shard's bytes. `whole`: all of them are read, front to back, and hashed; otherwise reads may jump forward.

    progress is called with numbers of bytes read or jumped over, their sum being the file's size. Compressed shards are
    always read whole, and places count in their unpacked bytes.
    """

    def __init__(self, path: Path, whole: bool, progress: Callable[[int], None] = lambda _: None) -> None:
        self.size = path.stat().st_size
        self._raw, self._file = opened(path)
        self.packed = self._raw is not self._file
        self._whole, self._progress = whole or self.packed, progress
        self._digest = hashlib.sha256() if whole and not self.packed else None
        self._buffer = memoryview(bytearray(CHUNK))
        self._start = self._stop = self._told = 0  # the window in the file, and what progress knows
        self._kept = (-1, b"")

    def __enter__(self) -> Data:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress(self.size - self._told)
        self._file.close()
        self._raw.close()

    def at(self, position: int, length: int) -> bytes:
        """`length` bytes at `position`, fewer where the file ends; a position must not lie behind the last window."""
        if self._start <= position and position + length <= self._stop:
            return bytes(self._buffer[position - self._start:position - self._start + length])
        if self._kept[0] == position and len(self._kept[1]) == length:
            return self._kept[1]
        parts, found = [], 0
        while found < length and self._load(position + found):
            place = position + found - self._start
            parts.append(bytes(self._buffer[place:min(place + length - found, self._stop - self._start)]))
            found += len(parts[-1])
        return b"".join(parts)

    def holds(self, offset: int, size: int) -> bool:
        """Whether the file has all of these bytes; a compressed one must be unpacked to know, so they are kept."""
        if not self.packed:
            return offset + size <= self.size
        self._kept = offset, self.at(offset, size)
        return len(self._kept[1]) == size

    def sha256(self) -> str:
        """The hex digest of the whole file; empty where it was not asked for, or is that of a compressed one."""
        if self._digest is None:
            return ""
        while self._read(CHUNK):
            pass
        return self._digest.hexdigest()

    def _load(self, position: int) -> bool:
        """Bring the window to `position`; False at the end of the file."""
        if self._whole:
            if position < self._start:
                raise ValueError(f"byte {position} is behind what is being read")
            while self._stop <= position:
                if not self._read(CHUNK):
                    return False
        elif not self._start <= position < self._stop:
            near = self._stop > 0 and 0 <= position - self._stop < NEAR
            self._file.seek(position)
            self._start = self._stop = position
            return self._read(4 * NEAR if near else HEAD)
        return True

    def _read(self, most: int) -> bool:
        count = self._file.readinto(self._buffer[:most])
        if not count:
            return False
        self._start, self._stop = self._stop, self._stop + count
        if self._digest:
            self._digest.update(self._buffer[:count])
        place = min(self._raw.tell(), self.size)
        self._progress(place - self._told)
        self._told = place
        return True
