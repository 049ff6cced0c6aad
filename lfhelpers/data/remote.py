"""A dataset behind an address: read like one in a folder, through the host's cache of shards.

Whole shards are fetched, not samples: object stores answer in tens of milliseconds, so one request for each sample
would need hundreds of them under way at a time, and could not be checked against a shard's sha256. The price is disk,
and a first step that waits for its first shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.data import manifest
from lfhelpers.data.address import Address
from lfhelpers.data.ahead import Ahead, Schedule
from lfhelpers.data.cache import Cache
from lfhelpers.data.download import Patience, persist, stream
from lfhelpers.data.locks import Locked
from lfhelpers.data.manifest import Manifest
from lfhelpers.data.order import Plan
from lfhelpers.errors import LfError
from lfhelpers.runs import new_folder


@dataclass(frozen=True, eq=False)
class RemoteManifest(Manifest):
    """A dataset whose `folder` holds only the shards that are in the cache; `read` fetches the one that it needs.

    What comes was compared with the manifest, so `check` at loading means nothing here.
    """

    cache: Cache | None = None
    _ahead: list[Ahead] = field(default_factory=list, init=False, repr=False)

    def read(self, index: int, fields: Sequence[str] | None = None, check: bool = False) -> dict[str, bytes]:
        """As Manifest.read, after the sample's shard was fetched; one that was damaged on this disk is fetched again.

        Raises LfError where the shard can't be had.
        """
        for ahead in self._ahead:
            ahead.note(index)
        try:
            return super().read(index, fields, check)
        except LfError:
            if not self._cache.refute(self.shards[self.rows.shard[index]]):
                raise
        return super().read(index, fields, check)

    def follow(self, plan: Plan, start: int, stop: int, spread: int) -> Callable[[], None]:
        """Fetch ahead what steps start..stop-1 read; returns what ends that.

        Call it before the reading workers are forked and before this process uses CUDA. spread: samples by which
        readers may lie apart. Raises LfError where the cache's limit is below what is read at the same time.
        """
        schedule = Schedule(plan, [shard.size for shard in self.shards], start, stop, spread)
        ahead = Ahead(self._cache, self.shards, schedule)
        self._ahead[:] = [ahead]
        here, count = len(self._cache.present()), len(self.shards)
        if here < count:
            print(f"{here} of {count} shards of {self._cache.address} are in {self.folder}; the others are fetched "
                  "while they are needed", flush=True)

        def end() -> None:
            ahead.stop()
            if self._ahead == [ahead]:
                self._ahead.clear()

        return end

    @property
    def _cache(self) -> Cache:
        assert self.cache
        return self.cache

    @contextlib.contextmanager
    def _descriptor(self, shard: int) -> Iterator[int]:
        try:
            file = self._cache.open(self.shards[shard], self._ahead[0].names if self._ahead else tuple)
        except OSError as error:  # not the sample's fault, which Manifest would name
            raise LfError(f"the cache of remote shards in {self.folder} can't be used: {error.strerror}; mend that and "
                          "start again.") from error
        with file:
            yield file.descriptor

    def _check_shards(self, check: str) -> None:
        """Nothing has been fetched yet; but a name from afar must not lead out of the folder."""
        for shard in self.shards:
            if Path(shard.name).name != shard.name or shard.name.startswith((".", "manifest.")):
                raise LfError(f"{self.folder / manifest.JSON} names a shard '{shard.name}', which is no plain file "
                              "name; pack the dataset again.")

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_ahead": []}


def open_remote(address: str, cache_folder: str | os.PathLike[str] | None = None, limit_gb: float = manifest.CACHE_GB,
                patience: Patience | None = None) -> RemoteManifest:
    """The dataset at `address`: a folder of manifest.json, manifest.npz and the shards, by any protocol of fsspec.

    cache_folder: default `cache` beside the runs; shared by all processes of a host, best on a local disk.
    limit_gb: 10^9 bytes of shards that it may hold, of all datasets together.
    Raises LfError where the address can't be read or holds no dataset.
    """
    place, patience = Address(address), patience or Patience()
    root = _made(Path(cache_folder or runs.root() / "cache").absolute())
    text = persist("manifest.json", place, patience, lambda: _json(place, patience))
    # The content is in the name as well: shards of a dataset that was packed anew never meet those of the old one.
    hashed = hashlib.sha256(f"{place}\n".encode() + text).hexdigest()[:16]
    folder = root / f"{str(place).rpartition('/')[2] or 'set'}-{hashed}"
    with Locked(root / "lock-manifest", os.O_RDWR | os.O_CREAT) as lock:
        lock.exclusive(wait=True)
        if not folder.exists():
            for left in root.glob(f".{folder.name}.*"):  # by a process that was killed
                shutil.rmtree(left)
            persist("manifest.npz", place, patience, lambda: _fill(folder, place, text, patience))
    dataset = RemoteManifest.load(folder)
    cache = Cache(root, folder, place, int(limit_gb * 1e9), patience)
    return RemoteManifest(folder, dataset.fields, dataset.samples, dataset.shards, dataset.rows, dataset.seed,
                          dataset.source, dataset.packing, cache)


def _made(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / "lock-manifest").touch()
    except OSError as error:
        raise LfError(f"no cache for remote shards can be kept in {root}: {error.strerror}; give another place with "
                      "LFHELPERS_RUNS.") from error
    return root


def _json(place: Address, patience: Patience) -> bytes:
    text = _whole(place, manifest.JSON, patience)
    orjson.loads(text)  # raises where it was cut, or is an error page
    return text


def _fill(folder: Path, place: Address, text: bytes, patience: Patience) -> None:
    """The dataset's folder with both manifest files, made in one step once they are whole and fit each other."""
    with new_folder(folder) as building:
        (building / manifest.JSON).write_bytes(text)
        (building / manifest.ARRAYS).write_bytes(_whole(place, manifest.ARRAYS, patience))
        try:
            RemoteManifest.load(building)
        except LfError as error:  # once more: the arrays have checksums of their own, so it may have been the way here
            raise ValueError(f"it holds no dataset: {error}") from error


def _whole(place: Address, name: str, patience: Patience) -> bytes:
    with contextlib.closing(stream(place, name, 0, patience.stall)) as chunks:
        return b"".join(chunks)
