"""The manifest: what a folder of shards holds, and where in its shard each member of each sample lies.

One JSON file for people, one .npz for the rows. Every member's place is kept in memory, 16 bytes each (about 100 MB
for a million samples of six members), so that any sample of any shard is one `pread` away: the order of samples is
then free, and does not depend on how samples were packed. Formats that are read from front to back need no such
table, and pay for it with a shuffle buffer and with splits by shard that leave ranks unequal.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from lfhelpers.errors import LfError, nearest
from lfhelpers.runs import write_atomic

if TYPE_CHECKING:
    from lfhelpers.data.order import Plan

FORMAT = 1
JSON, ARRAYS = "manifest.json", "manifest.npz"
CACHE_GB = 50.0  # 10^9 bytes of remote shards that this host keeps, where nothing else is asked for
OPEN_FILES = 256  # shards that a process keeps open; well under the usual limit of 1,024 files


@dataclass(frozen=True)
class Shard:
    """One tar file: its name in the folder, its size in bytes, its sha256 in hex and how many samples it holds."""

    name: str
    size: int
    sha256: str
    samples: int


@dataclass(frozen=True)
class Rows:
    """Where members lie: shard int32 [n]; offset int64, size int32, crc32 uint32 [n, F], F members in packing order."""

    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int32]
    crc32: NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Manifest:
    """A finished dataset: `fields` are the members' extensions in packing order, `source` says what made it."""

    folder: Path
    fields: tuple[str, ...]
    samples: int
    shards: tuple[Shard, ...]
    rows: Rows = field(repr=False)
    seed: int = 0
    source: Mapping[str, Any] = field(default_factory=dict)
    packing: Mapping[str, Any] = field(default_factory=dict)
    _files: dict[int, _File] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], check: Literal["none", "sizes", "sha256"] = "sizes",
             cache_gb: float = CACHE_GB) -> Manifest:
        """The dataset in `folder`, after its shards' sizes, or their whole content, were compared with the manifest.

        An address with `://` is read through the cache beside the runs, of `cache_gb` 10^9 bytes (remote.open_remote).
        Raises LfError where the folder, the manifest or a shard is missing, or where one does not fit the other.
        """
        if is_address(folder):
            from lfhelpers.data.remote import open_remote

            return open_remote(str(folder), limit_gb=cache_gb)
        path = Path(folder).absolute()
        data = _json(path)
        manifest = cls(path, tuple(data["fields"]), data["samples"], tuple(Shard(**item) for item in data["shards"]),
                       _rows(path), data["seed"], data["source"], data["packing"])
        if check != "none":
            manifest._check_shards(check)
        manifest._check_rows()
        return manifest

    @cached_property
    def hash(self) -> str:
        """16 hex digits of the content: fields, shards and rows; where it lies and what made it do not count."""
        content = {"format": FORMAT, "fields": self.fields, "shards": [asdict(item) for item in self.shards]}
        digest = hashlib.sha256(orjson.dumps(content))
        for item in fields(Rows):
            digest.update(np.ascontiguousarray(getattr(self.rows, item.name)).data)
        return digest.hexdigest()[:16]

    def read(self, index: int, fields: Sequence[str] | None = None, check: bool = False) -> dict[str, bytes]:
        """The wanted members (all, by default) of sample `index`, in one read; `check` compares each one's crc32.

        Members of a sample are adjacent, so one read from the first to the last wanted costs less than one each.
        Raises LfError naming shard:key:member. Safe to call from several threads.
        """
        columns = self._columns(self.fields if fields is None else fields)
        if not columns:
            return {}
        offset, size = self.rows.offset[index], self.rows.size[index]
        start = min(int(offset[column]) for column in columns.values())
        stop = max(int(offset[column] + size[column]) for column in columns.values())
        block = self._pread(index, start, stop)
        members = {ext: block[int(offset[column]) - start:int(offset[column] + size[column]) - start]
                   for ext, column in columns.items()}
        for ext, column in columns.items() if check else ():
            if zlib.crc32(members[ext]) != self.rows.crc32[index, column]:
                raise LfError(f"{self.where(index, ext)} is damaged: its crc32 is not the manifest's; find all damage "
                              "with check='sha256' and make the shard again.")
        return members

    def follow(self, plan: Plan, start: int, stop: int, spread: int) -> Callable[[], None] | None:
        """Have at hand in time what steps start..stop-1 read; returns what ends that. Shards on this disk need nothing.

        spread: samples by which the readers of a rank may lie apart.
        """
        return None

    def where(self, index: int, ext: str = "") -> str:
        """shard:key, or shard:key:member, for sentences about a sample."""
        return f"{self.shards[self.rows.shard[index]].name}:{key(index)}" + (f":{ext}" if ext else "")

    def need(self, wanted: Sequence[str]) -> None:
        """Raise LfError unless every wanted extension is a member of these samples."""
        for ext in wanted:
            if ext not in self.fields:
                raise LfError(f"the samples in {self.folder} have no member '{ext}' that the workload reads; "
                              f"{nearest(ext, self.fields)}")

    def _columns(self, wanted: Sequence[str]) -> dict[str, int]:
        self.need(wanted)
        return {ext: self.fields.index(ext) for ext in wanted}

    def _pread(self, index: int, start: int, stop: int) -> bytes:
        shard = int(self.rows.shard[index])
        try:
            with self._descriptor(shard) as descriptor:
                block = os.pread(descriptor, stop - start, start)
        except OSError as error:
            raise LfError(f"{self.where(index)} in {self.folder} can't be read: {error.strerror}.") from error
        if len(block) < stop - start:
            raise LfError(f"{self.where(index)} in {self.folder} is cut short: the shard ends before byte {stop}; "
                          "make the shard again.")
        return block

    @contextlib.contextmanager
    def _descriptor(self, shard: int) -> Iterator[int]:
        file = self._file(shard)  # kept until it was read: another thread may drop it from the open ones
        yield file.descriptor

    def _file(self, shard: int) -> _File:
        file = self._files.get(shard)
        if file is None:
            while len(self._files) >= OPEN_FILES:
                self._files.pop(next(iter(self._files)), None)  # closed when the last thread that reads it lets go
            file = self._files[shard] = _File(self.folder / self.shards[shard].name)
        return file

    def _check_shards(self, check: str) -> None:
        for shard in self.shards:
            path = self.folder / shard.name
            if not path.exists():
                raise LfError(f"shard {shard.name} is missing from {self.folder}; copy it there, or "
                              f"{_remake(self.folder)}.")
            size = path.stat().st_size
            if size != shard.size:
                raise LfError(f"shard {shard.name} in {self.folder} has {size} bytes, the manifest says {shard.size}; "
                              f"copy it again, or {_remake(self.folder)}.")
            if check == "sha256" and _sha256(path) != shard.sha256:
                raise LfError(f"shard {shard.name} in {self.folder} is damaged: its sha256 is not the manifest's; "
                              f"copy it again, or {_remake(self.folder)}.")

    def _check_rows(self) -> None:
        """Counts and places agree between the two files; a table of another dataset is caught here."""
        rows, count = self.rows, sum(shard.samples for shard in self.shards)
        if not len(rows.shard) == count == self.samples:
            raise LfError(f"{self.folder / ARRAYS} has {len(rows.shard)} rows, {JSON} says {self.samples} samples and "
                          f"its shards hold {count}; {_remake(self.folder)}.")
        sizes = np.array([shard.size for shard in self.shards])
        shapes = {array.shape for array in (rows.offset, rows.size, rows.crc32)}
        if (shapes != {(self.samples, len(self.fields))} or rows.shard.max() >= len(sizes)
                or (rows.offset + rows.size > sizes[rows.shard][:, None]).any()):
            raise LfError(f"{self.folder / ARRAYS} does not fit {JSON}: it belongs to another dataset; "
                          f"{_remake(self.folder)}.")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}}  # a descriptor means nothing in another process


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a dataset's place is an address that fsspec reads, and not a folder."""
    return "://" in str(path)


def key(index: int) -> str:
    """The key of sample `index`: digits alone, since both readers end a key at its first dot."""
    return f"{index:09d}"


def save(folder: Path, manifest: Manifest) -> None:
    """Write both files, the JSON last: a folder without it is no dataset."""
    buffer = io.BytesIO()
    np.savez(buffer, **vars(manifest.rows))
    write_atomic(folder / ARRAYS, buffer.getvalue())
    data = {"format": FORMAT, "samples": manifest.samples, "fields": manifest.fields, "seed": manifest.seed,
            "source": dict(manifest.source), "packing": dict(manifest.packing),
            "shards": [asdict(shard) for shard in manifest.shards]}
    write_atomic(folder / JSON, orjson.dumps(data, option=orjson.OPT_INDENT_2))


class _File:
    """A read-only descriptor that closes with its last reference."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def _json(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise LfError(f"there is no data folder {folder}; make one: lfhelpers data make --out {folder}")
    try:
        data = orjson.loads((folder / JSON).read_bytes())
    except FileNotFoundError as error:
        raise LfError(f"{folder} has no {JSON}: it is unfinished, or not made by lfhelpers; make a dataset: "
                      f"lfhelpers data make --out {folder}") from error
    except (OSError, orjson.JSONDecodeError) as error:
        raise LfError(f"{folder / JSON} can't be read: {error}; {_remake(folder)}.") from error
    known = {"format", "samples", "fields", "seed", "source", "packing", "shards"}
    if not isinstance(data, dict) or data.get("format") != FORMAT or not known <= data.keys():
        raise LfError(f"{folder / JSON} is no manifest of format {FORMAT}; {_remake(folder)}.")
    return data


def _rows(folder: Path) -> Rows:
    try:
        with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
            return Rows(**{item.name: arrays[item.name] for item in fields(Rows)})
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise LfError(f"{folder / ARRAYS} is missing or no table of rows; {_remake(folder)}.") from error


def _remake(folder: Path) -> str:
    return f"remove the folder and make it again: lfhelpers data make --out {folder}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
