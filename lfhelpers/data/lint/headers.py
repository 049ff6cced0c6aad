"""The members of any tar, by its headers, with their places: the one walk that every check is built on.

Headers are read here and not with tarfile, which ends without a word at a damaged header or at the first end mark of
joined archives, and keeps all members in memory.
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterator
from tarfile import BLOCKSIZE
from typing import NamedTuple

from lfhelpers.data.lint.scan import Data

LONGEST = 2**20  # bytes of a long name or of PAX records; more is no header but damage

_SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # webdataset's own pattern
_FILES, _FOLDER, _LINKS, _SPECIAL = (b"0", b"\0", b"7"), b"5", (b"1", b"2"), (b"L", b"K", b"x", b"X", b"g")


class Damage(Exception):
    """Why a walk found no regular end: the kind of finding, and what is wrong at which byte."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Entry(NamedTuple):
    """One member: `what` is file, folder, link or other; offset and size of its data in bytes.

    plain: the name that a reader sees that skips PAX headers, as DALI does. beyond: it lies behind an end mark, where
    no reader looks.
    """

    name: str
    what: str
    offset: int
    size: int
    plain: str
    beyond: bool


def members(data: Data) -> Iterator[Entry]:
    """All members in file order, with their long or PAX names.

    Raises Damage after the last member that is whole, where the archive isn't; what lies behind an end mark is given
    too, marked `beyond`, before that.
    """
    walk = _Walk(data)
    try:
        yield from walk.entries()
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise Damage("damaged_shard", f"can't be read at byte {walk.position}: {error}") from error
    if walk.mark >= 0:
        raise Damage("data_after_end", f"has an end mark at byte {walk.mark} and more data behind it")
    if not walk.found:
        raise Damage("empty_shard", "has no members, only zero blocks")


def split(name: str) -> tuple[str, str] | None:
    """(key, extension) as webdataset splits: at the first dot of the last path part; None where it sees no sample."""
    match = _SPLIT.match(name)
    return (match[1], match[2]) if match and match[2] else None


class _Walk:
    """The state of one walk: the place of the present header, and what special headers said about the next member."""

    def __init__(self, data: Data) -> None:
        self.data, self.position, self.mark, self.found = data, 0, -1, False
        self._long, self._pax = b"", dict[bytes, bytes]()

    def entries(self) -> Iterator[Entry]:
        while self._at_header():
            block = self.data.at(self.position, BLOCKSIZE)
            kind, size = self._header(block)
            offset = self.position + BLOCKSIZE
            if kind in _SPECIAL:
                self._note(kind, offset, size)
            else:
                entry = self._entry(block, kind, offset, size)
                yield entry
                offset, size = entry.offset, entry.size
            self.position = offset + -(-size // BLOCKSIZE) * BLOCKSIZE

    def _at_header(self) -> bool:
        """Step over zero blocks, which end an archive; False where nothing else follows."""
        block = self.data.at(self.position, BLOCKSIZE)
        if not block or block.strip(b"\0"):
            return True  # no block at all is for _header to judge
        mark = self.position
        while block and not block.strip(b"\0"):
            self.position += BLOCKSIZE
            block = self.data.at(self.position, BLOCKSIZE)
        if block and self.mark < 0:
            self.mark = mark
        return bool(block)

    def _header(self, block: bytes) -> tuple[bytes, int]:
        """(type, size in bytes). Raises Damage where the block is no header."""
        if len(block) < BLOCKSIZE and self.mark < 0:
            if not self.position:
                raise Damage("empty_shard", "has 0 bytes") if not block else Damage("damaged_shard", "is no tar file")
            what = "is cut inside a header" if block else "was cut or its writer not closed: no end mark"
            raise Damage("truncated_shard", f"{what} at byte {self.position}")
        if len(block) < BLOCKSIZE or not _sums_up(block):
            if self.mark >= 0:
                raise Damage("data_after_end", f"has an end mark at byte {self.mark} and more data behind it")
            raise Damage("damaged_shard", f"has no header at byte {self.position}; what follows is lost"
                         if self.position else "is no tar file")
        size = _number(block[124:136])
        if size < 0:
            raise Damage("damaged_shard", f"has a header without a size at byte {self.position}; what follows is lost")
        return block[156:157], size

    def _note(self, kind: bytes, offset: int, size: int) -> None:
        """Keep what a long-name or PAX header says."""
        if size > LONGEST:
            raise ValueError(f"a special header has {size} bytes")
        special = self.data.at(offset, size)
        if len(special) < size:
            raise Damage("truncated_shard", f"is cut inside a header at byte {offset}")
        if kind == b"L":
            self._long = special.split(b"\0", 1)[0]
        elif kind in (b"x", b"X"):
            self._pax = _records(special)

    def _entry(self, block: bytes, kind: bytes, offset: int, size: int) -> Entry:
        plain = self._long or _short_name(block)
        name = (self._pax.get(b"GNU.sparse.name") or self._pax.get(b"path") or plain).decode(errors="surrogateescape")
        what = _what(kind, plain)
        if kind == b"S":
            offset += _sparse_map(self.data, offset, block)
        # As in tarfile: a folder's or link's header may give a size, but no data follows.
        size = 0 if what in ("folder", "link") else int(self._pax.get(b"size", size))
        if size < 0:
            raise ValueError(f"{name} has {size} bytes")
        if not self.data.holds(offset, size):
            raise Damage("truncated_shard", f"is cut inside {name}, which should end at byte {offset + size}")
        self._long, self._pax, self.found = b"", {}, True
        return Entry(name, what, offset, size, plain.decode(errors="surrogateescape"), self.mark >= 0)


def _sums_up(block: bytes) -> bool:
    """Whether the header's own checksum holds; old tars add signed bytes."""
    given, field = _number(block[148:156]), block[148:156]
    return given == sum(block) - sum(field) + 256 or given == sum(
        memoryview(block).cast("b")) - sum(memoryview(field).cast("b")) + 256


def _number(field: bytes) -> int:
    """An octal number, or GNU's binary one for sizes of 8 GiB and more; -1 where it is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return -1


def _short_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _what(kind: bytes, name: bytes) -> str:
    if kind == _FOLDER or (kind == b"\0" and name.endswith(b"/")):
        return "folder"
    return "file" if kind in _FILES else "link" if kind in _LINKS else "other"


def _records(data: bytes) -> dict[bytes, bytes]:
    """PAX records, 'length key=value' and a line end each, where length counts itself."""
    records, position = {}, 0
    while position < len(data) and data[position]:
        length = int(data[position:].split(b" ", 1)[0])
        if length < 5:
            raise ValueError("a PAX record has no length")
        key, _, value = data[position:position + length - 1].split(b" ", 1)[1].partition(b"=")
        records[key] = value
        position += length
    return records


def _sparse_map(data: Data, offset: int, block: bytes) -> int:
    """Bytes of the blocks that follow a header of GNU's old sparse format."""
    length, more = 0, block[482]
    while more:
        extension = data.at(offset + length, BLOCKSIZE)
        more = extension[504] if len(extension) == BLOCKSIZE else 0
        length += BLOCKSIZE
    return length
