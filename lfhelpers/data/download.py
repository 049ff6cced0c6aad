"""Bytes from an address: any protocol that fsspec knows, streamed, retried, never waited for without end.

Each attempt reads in a thread of its own, which is abandoned when too little has come for too long: that holds for
every protocol alike, where time limits of their own differ from driver to driver and some have none. A broken transfer
goes on where it stopped; since a server may ignore that wish, only the size and the sha256 say that a file is right.
Published loaders that stream without a copy can do neither, and lose the rest of a shard with a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from lfhelpers.errors import LfError

CHUNK = 2**20  # bytes handed over at once
BLOCK = 2**22  # bytes that must come within Patience.stall seconds, or all that is left
EARNED = 2**24  # bytes of progress after which a broken connection is not counted as a failure
TEMPORARY = (408, 416, 425, 429)  # answers below 500 that may be another one next time

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How often and how long: `tries` in all, pauses that double from `first` to `longest` seconds, with jitter.

    stall: seconds in which at least 4 MiB, or the rest of the file, must come.
    seed: makes the jitter repeatable; none given: it differs between processes, which is what it is for.
    """

    tries: int = 6
    first: float = 0.5
    longest: float = 30.0
    stall: float = 60.0
    seed: int | None = None

    def pause(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure (from 1): half to all of the doubled pause."""
        draw = random.Random() if self.seed is None else random.Random(self.seed * 1000 + failures)
        return min(self.longest, self.first * 2.0 ** (failures - 1)) * draw.uniform(0.5, 1.0)


@dataclass(frozen=True)
class Address:
    """A folder behind a protocol, such as `https://host/set` or `s3://bucket/set`."""

    text: str

    def __str__(self) -> str:
        """Without the query and the password, which may be secrets: for sentences."""
        parts = urlsplit(self.text)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")).rstrip("/")

    @property
    def http(self) -> bool:
        """Whether a query may follow the path, and a file is best had as one stream."""
        return self.text.startswith(("http://", "https://"))

    def of(self, name: str) -> str:
        """The address of a file in the folder; what follows a `?` stays at the end."""
        if not self.http:
            return f"{self.text.rstrip('/')}/{name}"
        parts = urlsplit(self.text)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))

    def shown(self, text: str) -> str:
        """`text` without this address's secrets."""
        return text.replace(self.text, str(self)).replace(urlsplit(self.text).query or self.text, "...")


class Failed(Exception):
    """An attempt that failed and may succeed next time; one with `progress` isn't counted."""

    def __init__(self, reason: str, progress: bool = False) -> None:
        super().__init__(reason)
        self.progress = progress


def persist(what: str, address: Address, patience: Patience, attempt: Callable[[], T]) -> T:
    """attempt(), again after a growing pause while it fails. Raises LfError after `tries` failures or a hopeless one.

    what: begins the sentence, such as "shard a.tar".
    """
    failures = 0
    while True:
        try:
            return attempt()
        except LfError:
            raise
        except Exception as error:  # each driver has its own exceptions
            failures += not (isinstance(error, Failed) and error.progress)
            if _hopeless(error) or failures >= patience.tries:
                raise LfError(f"{what} can't be fetched from {address}: {_reason(error, address)}, after {failures} "
                              f"{'tries' if failures > 1 else 'try'}; see that it is whole there and start again, all "
                              "that has been fetched is kept.") from error
        time.sleep(patience.pause(max(failures, 1)))


def fetch(address: Address, name: str, size: int, sha256: str, descriptor: int, patience: Patience) -> None:
    """Write the file `name` to `descriptor`, `size` bytes that have this sha256, or raise LfError naming both."""
    copy = _Copy(descriptor, size)

    def attempt() -> None:
        with contextlib.closing(stream(address, name, copy.offset, patience.stall)) as chunks:
            copy.take(chunks)
        if copy.digest.hexdigest() != sha256:
            copy.distrust()
            raise Failed("its sha256 is not the manifest's")

    persist(f"shard {name}", address, patience, attempt)


def stream(address: Address, name: str, offset: int, stall: float) -> Iterator[bytes]:
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
                raise item
            yield item
            arrived += len(item)
            if arrived >= BLOCK:
                deadline, arrived = time.monotonic() + stall, 0
    finally:
        stop.set()


class _Copy:
    """What has come of one file so far, written and hashed; `resumes` until the server proved that it can't."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size, self.resumes = descriptor, size, True
        self._restart()

    def take(self, chunks: Iterator[bytes]) -> None:
        """Append all chunks. Raises Failed where fewer or more bytes come than the file has."""
        before = self.offset
        try:
            for chunk in chunks:
                if self.offset + len(chunk) > self.size:
                    self.distrust()  # it sent the file from its start, or another one
                    raise Failed(f"more than the manifest's {self.size} bytes came")
                self._write(chunk)
            if self.offset < self.size:
                raise Failed(f"the connection ended after {self.offset} of {self.size} bytes")
        except OSError as error:
            if error.errno and not isinstance(error, ConnectionError | TimeoutError):
                raise  # the disk's, or a name that can't be resolved
            raise self._broken(before, str(error) or type(error).__name__) from error
        except Failed as error:
            raise self._broken(before, str(error)) from error

    def distrust(self) -> None:
        """Begin again from the first byte, and do so after every failure from now on."""
        self.resumes = False
        self._restart()

    def _broken(self, before: int, reason: str) -> Failed:
        progress = self.resumes and self.offset - before >= EARNED
        if not self.resumes:
            self._restart()
        return Failed(reason, progress)

    def _restart(self) -> None:
        self.offset, self.digest = 0, hashlib.sha256()

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self.descriptor, view, self.offset)
            self.digest.update(view[:written])
            self.offset += written
            view = view[written:]


def _pump(address: Address, name: str, offset: int, stall: float, items: queue.Queue[Any], stop: threading.Event
          ) -> None:
    """The thread: put chunks, then None or what was raised, unless nobody waits any more."""

    def put(item: bytes | BaseException | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                return items.put(item, timeout=0.2)

    try:
        with _open(address, name, offset, stall) as file:
            while not stop.is_set() and (chunk := file.read(CHUNK)):
                put(chunk)
        put(None)
    except BaseException as error:
        put(error)


def _open(address: Address, name: str, offset: int, stall: float) -> Any:
    """A file-like object at `offset`. Raises LfError where the protocol's driver is missing."""
    import fsspec

    options: dict[str, Any] = {}
    try:
        if address.http:
            import aiohttp

            # fsspec's own limit is 5 minutes a file. Its instances are kept apart by process, so forks get their own.
            limits = aiohttp.ClientTimeout(total=None, sock_connect=stall, sock_read=stall)
            options = {"client_kwargs": {"timeout": limits, "trust_env": True}}
        files, path = fsspec.core.url_to_fs(address.of(name), **options)
    except (ImportError, ValueError) as error:
        raise LfError(f"{address} can't be read here: {str(error).rstrip('.')}; install that package with pip, or "
                      "copy the shards into a folder.") from error
    if not address.http:
        file = files.open(path, "rb", block_size=BLOCK)
        file.seek(offset)
        return file
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
    return files.open(path, "rb", block_size=0, size=1, headers=headers)  # one stream; with a size it asks for none


def _hopeless(error: Exception) -> bool:
    """Whether no further attempt can help: it isn't there, or we may not have it."""
    status = getattr(error, "status", 0)
    return (isinstance(error, FileNotFoundError | PermissionError)
            or (isinstance(status, int) and 400 <= status < 500 and status not in TEMPORARY))


def _reason(error: Exception, address: Address) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is not there"
    if isinstance(status := getattr(error, "status", None), int):
        return f"the server answered {status}"
    return address.shown(str(error).partition("\n")[0].rstrip(".") or type(error).__name__)
