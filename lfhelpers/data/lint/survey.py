"""The first walk over a shard: how many samples have which members, and whether anything needs a second look.

A shard may have a million members and a set a million shards, so what a walk returns has no names: 8 bytes of hash and
2 of signature a sample, and each different signature once. What is wrong is named by a second walk (rules.py), over
headers alone and over those shards alone that need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lfhelpers.data.lint import index, pictures
from lfhelpers.data.lint.headers import Damage, Entry, members, split
from lfhelpers.data.lint.report import SHOWN, Tally
from lfhelpers.data.lint.scan import Data
from lfhelpers.data.lint.schema import Schema, is_image

SIGNATURES = 1000
"""Different combinations of members that a survey keeps; a set with more has dots in its keys."""
OTHER = np.iinfo(np.uint16).max


@dataclass(frozen=True)
class Task:
    """What a walk over one shard shall do. name: the shard in the report; all_names: of unreadable images."""

    path: Path
    name: str
    whole: bool
    decode: bool
    all_names: bool = False


@dataclass
class Survey:
    """What one walk found. keys: uint64 [n], hashes; signature: uint16 [n], each key's place in `signatures`, or OTHER.

    runs: samples as readers group them. odd: something but the members differs from a sound shard. tally: findings
    about the shard itself and its images.
    """

    tally: Tally
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    signature: NDArray[np.uint16] = field(default_factory=lambda: np.empty(0, np.uint16))
    signatures: list[tuple[str, ...]] = field(default_factory=list)
    members: int = 0
    runs: int = 0
    odd: bool = False
    sha256: str = ""
    size: int = 0


def hashed(key: str) -> int:
    """64 bits of a key; two of a hundred million keys share one with a probability of 1 in 3,700."""
    return int.from_bytes(hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=8).digest(), "little")


def survey(task: Task, schema: Schema, progress: Callable[[int], None]) -> Survey:
    """Walk over one shard; whatever is wrong with it is in the result, never raised."""
    found = Survey(Tally(None if task.all_names else SHOWN))
    samples = _Samples(schema, found)
    listed: list[Entry] | None = [] if task.path.with_suffix(".idx").exists() else None
    try:
        with Data(task.path, task.whole, progress) as data:
            found.size = data.size
            try:
                for entry in members(data):
                    ext = samples.add(entry)
                    if task.decode and entry.size and is_image(ext):
                        _look(task, entry, data.at(entry.offset, entry.size), found.tally)
                    if listed is not None:
                        listed.append(entry)
            except Damage as damage:
                found.tally.add(damage.kind, f"{task.name} {damage}")
            found.sha256 = data.sha256()
            if data.packed:
                found.tally.add("compressed_shard", task.name)
            elif listed is not None and (wrong := index.check(task.path, listed)):
                found.tally.add(wrong[0], f"{Path(task.name).with_suffix('.idx')} {wrong[1]}")
    except OSError as error:
        found.tally.add("damaged_shard", f"{task.name} can't be read: {error.strerror or error}")
    samples.close()
    return found


def _look(task: Task, entry: Entry, data: bytes, tally: Tally) -> None:
    for oddity in pictures.oddities(data):
        reason = f" ({oddity.reason})" if oddity.reason and not task.all_names else ""
        tally.add(oddity.kind, f"{task.name}:{entry.name}{reason}", [oddity.detail] if oddity.detail else [])


class _Samples:
    """Gathers each key's members; a key is kept as text for as long as its shard is walked over."""

    def __init__(self, schema: Schema, found: Survey) -> None:
        self._schema, self._found = schema, found
        self._numbers: dict[tuple[str, ...], int] = {}
        self._keys: dict[str, int] = {}
        self._last: str | None = None  # the key that a reader has open
        self._key, self._fields = "", tuple[str, ...]()

    def add(self, entry: Entry) -> str:
        """Count a member; returns its extension, empty for what belongs to no sample."""
        self._found.members += 1
        parts = split(entry.name) if entry.what == "file" else None
        if parts and parts[0] != self._last and not entry.beyond:
            self._found.runs += 1
            self._last = parts[0]
        if parts is None or index.hidden(entry.name):
            self._found.odd = True
            return ""
        key, ext, dotted = self._schema.cut(*parts)
        self._found.odd |= entry.name != entry.plain or not entry.size
        if key != self._key:
            self._put()
            self._key, self._fields = key, ()
            self._found.odd |= key in self._keys or dotted
        self._found.odd |= ext in self._fields
        self._fields = (*self._fields, ext)
        return ext

    def close(self) -> None:
        """Turn what was gathered into arrays."""
        self._put()
        self._found.keys = np.fromiter(map(hashed, self._keys), np.uint64, len(self._keys))
        self._found.signature = np.fromiter(self._keys.values(), np.uint16, len(self._keys))

    def _put(self) -> None:
        """The key is closed, perhaps not for the first time: note which members it has by now."""
        known, signatures = self._keys.get(self._key), self._found.signatures
        if not self._fields or known == OTHER:
            return
        fields = tuple(dict.fromkeys((*(signatures[known] if known is not None else ()), *self._fields)))
        number = self._numbers.get(fields, int(OTHER))
        if number == OTHER and len(signatures) < SIGNATURES:
            number = self._numbers[fields] = len(signatures)
            signatures.append(fields)
        self._keys[self._key] = number
