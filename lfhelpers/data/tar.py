"""One shard: a USTAR tar whose bytes depend on its samples alone, with DALI's index and the rows for the manifest.

USTAR and not Python's default PAX, whose headers DALI skips: it would lose or empty samples without a word. Headers
are written here and not by tarfile's own writer, because the place, size, crc32 and sha256 of everything are then
known without reading the file a second time.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lfhelpers.data import manifest
from lfhelpers.errors import LfError
from lfhelpers.runs import write_atomic

Sample = Callable[[int], Mapping[str, bytes]]
ROWS = ".rows"  # in the building folder: the plan, the lock, and a file for each finished shard
EXTENSION = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")  # webdataset lowers the case of what it reads, DALI does not


@dataclass(frozen=True)
class Packing:
    """What decides every byte: the call's settings, and what the first samples taught (fields, mean bytes, shards)."""

    samples: int
    shard_mb: float
    readers: int
    seed: int
    source: dict[str, Any]
    fields: list[str] = field(default_factory=list)
    mean_bytes: int = 0
    shards: int = 0

    def indices(self, number: int) -> range:
        """The samples of one shard; shards differ by one sample at most."""
        return range(number * self.samples // self.shards, (number + 1) * self.samples // self.shards)

    def settings(self) -> dict[str, Any]:
        """The part that the caller chose."""
        return {name: getattr(self, name) for name in ("samples", "shard_mb", "readers", "seed", "source")}


def write_shard(building: Path, packing: Packing, number: int, sample: Sample, tick: Callable[[], None]) -> None:
    """One shard, its index, then its rows, whose presence means that the shard is whole; `tick` counts each sample."""
    name = f"shard-{number:05d}"
    temporary = building / f".{name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb", buffering=2**20) as file:
            tar = _Tar(file)
            rows = []
            for index in packing.indices(number):
                rows.append(tar.add(manifest.key(index), members(sample, index, packing.fields)))
                tick()
            tar.end()
            file.flush()
            os.fsync(file.fileno())
        write_atomic(building / f"{name}.idx", _dali_index(packing, number, rows))
        temporary.replace(building / f"{name}.tar")
    finally:
        temporary.unlink(missing_ok=True)
    table = np.array(rows, dtype=np.int64)  # [samples, fields, 3]
    buffer = io.BytesIO()
    np.savez(buffer, table=table, size=tar.position, sha256=tar.digest.hexdigest())
    write_atomic(rows_file(building, number), buffer.getvalue())


def members(sample: Sample, index: int, expected: Sequence[str] = ()) -> dict[str, bytes]:
    """sample(index), checked: the expected extensions in order, names that every reader splits alike, nothing empty."""
    try:
        made = dict(sample(index))
    except Exception as error:
        kind = "" if isinstance(error, LfError) else f"{type(error).__name__}: "
        raise LfError(f"sample {index} can't be made: {kind}{error}") from error
    if list(made) != list(expected or made) or not made:
        raise LfError(f"sample {index} has the members {', '.join(made) or 'none'}, the first one has "
                      f"{', '.join(expected)}; every sample needs the same ones in the same order.")
    for ext, data in made.items():
        if not EXTENSION.fullmatch(ext) or len(ext) > 80:
            raise LfError(f"sample {index}: '{ext}' is no member name; use lower-case letters, digits, _ and dots, "
                          "80 at most.")
        if not isinstance(data, bytes) or not data:
            kind = "empty" if data == b"" else type(data).__name__
            raise LfError(f"sample {index}: member '{ext}' is {kind}; give bytes, at least one: readers can't tell an "
                          "empty member from a missing one.")
        if len(data) >= 2**31:
            raise LfError(f"sample {index}: member '{ext}' has {len(data)} bytes; give less than 2 GiB.")
    return made


def tar_bytes(made: Mapping[str, bytes]) -> int:
    """What one sample takes in a tar: a header block a member, data in whole blocks."""
    return sum(tarfile.BLOCKSIZE * (1 + -(-len(data) // tarfile.BLOCKSIZE)) for data in made.values())


def is_whole(building: Path, number: int) -> bool:
    """Whether write_shard has finished this shard here."""
    try:
        with np.load(rows_file(building, number)) as rows:
            return (building / f"shard-{number:05d}.tar").stat().st_size == int(rows["size"])
    except FileNotFoundError:
        return False


def rows_file(building: Path, number: int) -> Path:
    """A finished shard's rows: table int64 [samples, fields, (offset, size, crc32)], and the tar's size and sha256."""
    return building / ROWS / f"{number:05d}.npz"


class _Tar:
    """A USTAR file with fixed times and owners, hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.position, self.digest = file, 0, hashlib.sha256()

    def add(self, key: str, sample: Mapping[str, bytes]) -> list[tuple[int, int, int]]:
        """Append one sample's members; (offset of the data, size, crc32) of each."""
        places = []
        for ext, data in sample.items():
            info = tarfile.TarInfo(f"{key}.{ext}")
            info.size, info.mode = len(data), 0o644
            self._put(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
            places.append((self.position, len(data), zlib.crc32(data)))
            self._put(data)
            self._put(bytes(-len(data) % tarfile.BLOCKSIZE))
        return places

    def end(self) -> None:
        """Two zero blocks, filled up to a whole record, as every tar ends."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(bytes(-self.position % tarfile.RECORDSIZE))

    def _put(self, data: bytes) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.position += len(data)


def _dali_index(packing: Packing, number: int, rows: Sequence[Sequence[tuple[int, int, int]]]) -> bytes:
    """wds2idx v1.2: a head with the count, then a line a sample with 'extension offset size name' of each member."""
    lines = [f"v1.2 {len(rows)}"]
    for index, places in zip(packing.indices(number), rows, strict=True):
        key = manifest.key(index)
        lines.append(" ".join(f"{ext} {offset} {size} {key}.{ext}"
                              for ext, (offset, size, _) in zip(packing.fields, places, strict=True)))
    return "\n".join(lines).encode() + b"\n"
