"""One folder of fetched shards for all processes of a host: each shard comes once, and no more of them than a limit.

A file that has its shard's name was compared with the manifest, written to disk and renamed, so it can be trusted
whenever the process that fetched it was killed. All agreement is by locks on files, which the system takes from a dead
owner; there is no server that could be missing and no record that could be wrong. The price is an open, a lock and a
time stamp for every read, some 15 us, where an image takes a thousand to decode.

    lock                     held while somebody counts bytes, evicts or reserves
    leases/                  shards that running jobs need soon; each file is locked by its job
    NAME-HASH/               one dataset, by its address and its manifest
        manifest.json, .npz
        shard-00000.tar      whole; locked (shared) while it is read, its time is that of the last read
        .shard-00000.tar.part    being fetched; locked by who does it, already as long as it will be
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lfhelpers.data.address import Address
from lfhelpers.data.download import Patience, fetch
from lfhelpers.data.locks import Locked
from lfhelpers.data.manifest import Shard
from lfhelpers.errors import LfError

LEASES, PART = "leases", ".part"
POLL = 0.05  # seconds between looks for room


class NoRoom(Exception):
    """Nothing can be evicted now that is not in use or needed sooner."""


class _Whole(NamedTuple):
    """A shard in the cache, of any dataset."""

    used: float
    path: Path
    size: int


@dataclass(frozen=True)
class Cache:
    """The shards of one dataset in `folder`, below the host's `root`, which may hold `limit` bytes of all datasets."""

    root: Path
    folder: Path
    address: Address
    limit: int
    patience: Patience

    def open(self, shard: Shard, keep: Callable[[], Sequence[str]] = tuple) -> Locked:
        """The shard's whole file, locked against eviction until it is closed; fetched where it is missing.

        keep: names of the reader's next shards, soonest first, which are evicted last. Raises LfError where the shard
        can't be had.
        """
        if file := self._there(shard):
            return file
        deadline = time.monotonic() + self.patience.stall
        while True:
            try:
                file = self.fetch(shard, keep, ahead=False)
                assert file, shard  # only a fetch ahead leaves it to another process
                return file
            except NoRoom:
                if time.monotonic() > deadline:
                    raise LfError(f"shard {shard.name} finds no room in {self.root}: other shards fill the limit of "
                                  f"{self.limit / 1e9:g} GB and are all being read or fetched; give a larger "
                                  "data.cache_gb.") from None
                time.sleep(POLL)

    def fetch(self, shard: Shard, keep: Callable[[], Sequence[str]], ahead: bool) -> Locked | None:
        """Fetch the shard unless it is there; None where it is left to another process that does so (`ahead`).

        Raises NoRoom, or LfError where it can't be had. `ahead` evicts nothing that any running job needs soon.
        """
        place, path = self.folder / f".{shard.name}{PART}", self.folder / shard.name
        while True:
            part = Locked(place, os.O_RDWR | os.O_CREAT)
            if not part.exclusive(wait=not ahead):
                part.close()
                return None
            if part.named(place):
                break
            part.close()  # its owner has finished or given up, or somebody took it for a dead one's
            if file := self._there(shard):
                return file
        fetched = False
        try:
            if file := self._there(shard):
                return file
            self._reserve(part, shard, keep, ahead)
            fetch(self.address, shard.name, shard.size, shard.sha256, part.descriptor, self.patience)
            os.fsync(part.descriptor)
            with self._accounting():  # or a count just now would miss it under both names
                place.rename(path)
            part.shared()
            fetched = True
            return part
        finally:
            if not fetched:  # not left to the end of the last reference, which a traceback may keep for long
                if part.named(place):
                    place.unlink()
                part.close()

    def present(self) -> set[str]:
        """Names of the dataset's shards that are here and whole."""
        return {name for name in os.listdir(self.folder) if not name.startswith((".", "manifest."))}

    def refute(self, shard: Shard) -> bool:
        """Whether the file here is not what the manifest says, by its sha256; it is removed then."""
        path = self.folder / shard.name
        with contextlib.suppress(FileNotFoundError), Locked(path) as file:
            with open(file.descriptor, "rb", closefd=False) as content:
                if hashlib.file_digest(content, "sha256").hexdigest() == shard.sha256:
                    return False
            if file.named(path):
                path.unlink()
            return True
        return False

    def sweep(self) -> None:
        """Remove what killed processes left behind."""
        with self._accounting():
            self._scan(None)
            self._leased()

    def lease(self) -> Lease:
        """A new lease of this process on no shard yet."""
        return Lease(self)

    @contextlib.contextmanager
    def _accounting(self) -> Iterator[None]:
        with Locked(self.root / "lock", os.O_RDWR | os.O_CREAT) as lock:
            lock.exclusive(wait=True)
            yield

    def _there(self, shard: Shard) -> Locked | None:
        path = f"{self.folder}/{shard.name}"  # for every read: joining Paths takes longer than all that follows
        try:
            file = Locked(path)
        except FileNotFoundError:
            return None
        file.shared()
        if os.fstat(file.descriptor).st_size != shard.size:  # something else than this project wrote to it
            if file.named(path):
                os.unlink(path)
            file.close()
            return None
        os.utime(file.descriptor)
        return file

    def _reserve(self, part: Locked, shard: Shard, keep: Callable[[], Sequence[str]], ahead: bool) -> None:
        """Evict until the shard fits and make `part` as long as it will be, which is what others count."""
        if shard.size > self.limit:
            raise LfError(f"shard {shard.name} of {self.address} has {shard.size / 1e9:g} GB, the cache's limit is "
                          f"{self.limit / 1e9:g} GB; give a larger data.cache_gb.")
        with self._accounting():
            files, reserved = self._scan(part)
            excess = sum(file.size for file in files) + reserved + shard.size - self.limit
            for file in self._victims(files, keep(), ahead) if excess > 0 else ():
                if excess <= 0:
                    break
                excess -= file.size if _evict(file.path) else 0
            if excess > 0:
                raise NoRoom
            os.ftruncate(part.descriptor, shard.size)

    def _scan(self, own: Locked | None) -> tuple[list[_Whole], int]:
        """All whole shards under the root, and the bytes of those being fetched; a dead process's part is removed."""
        files, reserved = [], 0
        for path in self.root.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.name.startswith(".") and path.name.endswith(PART):
                    with Locked(path) as part:
                        if not (own and own.named(path)) and part.exclusive():
                            path.unlink()
                        else:
                            reserved += os.fstat(part.descriptor).st_size
                elif path.parent.name != LEASES and not path.name.startswith((".", "manifest.")):
                    state = path.stat()
                    files.append(_Whole(state.st_mtime, path, state.st_size))
        return files, reserved

    def _victims(self, files: list[_Whole], keep: Sequence[str], ahead: bool) -> list[_Whole]:
        """What may go, first first: shards that nobody needs soon, the longest unused before the others.

        A shard that is wanted now may also push out what others lease, and its own reader's, the last needed first.
        """
        leased, own = self._leased(), {self.folder / name: place for place, name in enumerate(keep)}
        spare = sorted(file for file in files if file.path not in own)
        free = [file for file in spare if file.path not in leased]
        if ahead:
            return free
        mine = sorted((file for file in files if file.path in own), key=lambda file: -own[file.path])
        return free + [file for file in spare if file.path in leased] + mine

    def _leased(self) -> set[Path]:
        """Shards that running jobs need soon; a dead job's lease is removed."""
        found: set[Path] = set()
        for path in (self.root / LEASES).glob("*"):
            with contextlib.suppress(FileNotFoundError), Locked(path) as lease:
                if lease.exclusive():
                    path.unlink()
                else:
                    found |= {self.root / line for line in path.read_text().splitlines()}
        return found


class Lease:
    """Shards that this process's job needs soon, told to all others of the host until it is closed or dies."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._held = cache, [""]
        self._path = cache.root / LEASES / f"{os.getpid()}-{secrets.token_hex(4)}"
        with cache._accounting():
            self._path.parent.mkdir(exist_ok=True)
            self._file = Locked(self._path, os.O_RDWR | os.O_CREAT)
            self._file.exclusive()

    def hold(self, names: Sequence[str]) -> None:
        """Lease these shards of the dataset and no others."""
        if names != self._held:
            with self._cache._accounting():
                self._path.write_text("".join(f"{self._cache.folder.name}/{name}\n" for name in names))
            self._held = list(names)


def _evict(path: Path) -> bool:
    """Remove a shard unless somebody reads it."""
    with contextlib.suppress(FileNotFoundError), Locked(path) as file:
        if not file.exclusive():
            return False
        if file.named(path):
            path.unlink()
    return True
