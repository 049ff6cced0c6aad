"""The second look, once it is known what samples of the set should have: names of all that is wrong.

`examine` walks over one shard's headers again; `crossings` judges keys that lie in several shards, by hashes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lfhelpers.data.lint import index
from lfhelpers.data.lint.across import Across, Hashes
from lfhelpers.data.lint.headers import Damage, Entry, members
from lfhelpers.data.lint.report import SHOWN, Tally
from lfhelpers.data.lint.scan import Data
from lfhelpers.data.lint.schema import Schema
from lfhelpers.data.lint.survey import OTHER, Survey, Task, hashed


@dataclass
class Crossing:
    """Keys of one kind of finding that lie in several shards: how often, missing members, and the first hashes."""

    count: int = 0
    details: Counter[str] = field(default_factory=Counter)
    first: list[int] = field(default_factory=list)

    def add(self, number: int, count: int = 1, details: Sequence[str] = ()) -> None:
        self.count += count
        self.details.update(details)
        if len(self.first) < SHOWN:
            self.first.append(number)


def needs_second_look(found: Survey, schema: Schema) -> bool:
    """Whether anything in the shard differs from samples with exactly the schema's members, as written there."""
    if found.odd or (found.signature == OTHER).any():
        return True
    return any(set(signature) != set(schema.fields) for signature in found.signatures)


def examine(task: Task, schema: Schema, elsewhere: Hashes, wanted: frozenset[int],
            progress: Callable[[int], None]) -> tuple[Tally, dict[int, str]]:
    """(what is wrong with the shard's members, shard:key of the wanted hashes).

    elsewhere: sorted hashes of keys that lie in other shards too, whose missing members are not this shard's matter.
    """
    look = _Look(task.name, schema)
    try:
        with Data(task.path, whole=False, progress=progress) as data:
            for entry in members(data):
                look.add(entry)
    except (Damage, OSError):
        pass  # the survey has told it
    names = {}
    for key, fields in look.samples.items():
        number = hashed(key) if len(elsewhere) or wanted else 0
        if number in wanted:
            names[number] = f"{task.name}:{key}"
        place = int(np.searchsorted(elsewhere, np.uint64(number)))
        if not (place < len(elsewhere) and elsewhere[place] == number):
            look.judge(key, fields)
    return look.tally, names


class _Look:
    """Members one after the other, as a reader meets them."""

    def __init__(self, shard: str, schema: Schema) -> None:
        self.shard, self.schema, self.tally = shard, schema, Tally()
        self.samples: dict[str, dict[str, None]] = {}
        self._open, self._reopened, self._dotted = "", set[str](), set[str]()

    def add(self, entry: Entry) -> None:
        name = f"{self.shard}:{entry.name}"
        parts = self.schema.split(entry.name) if entry.what == "file" and not index.hidden(entry.name) else None
        if parts is None:
            self.tally.add("side_files", name, [_side(entry)])
            return
        key, ext, dotted = parts
        canonical = self.schema.canonical(ext)
        if dotted and key not in self._dotted:
            self._dotted.add(key)
            self.tally.add("dotted_keys", f"{self.shard}:{key}")
        if entry.name != entry.plain:
            self.tally.add("pax_names", name)
        if not entry.size:
            self.tally.add("empty_members", name, [canonical])
        if ext != ext.lower():
            self.tally.add("extension_case", name, [ext])
        if canonical != ext.lower():
            self.tally.add("extension_mix", name, [ext.lower()])
        self._place(key, canonical, name)

    def judge(self, key: str, fields: Mapping[str, None]) -> None:
        """Which members a whole sample lacks, or has beside those that most have."""
        name, missing = f"{self.shard}:{key}", [ext for ext in self.schema.fields if ext not in fields]
        if missing:
            self.tally.add("missing_members", f"{name} ({', '.join(missing[:SHOWN])})", missing)
        if len(fields) + len(missing) > len(self.schema.fields):
            self.tally.add("extra_members", name, [ext for ext in fields if ext not in self.schema.fields])

    def _place(self, key: str, ext: str, name: str) -> None:
        """The member joins its sample, unless it is there already or its sample was closed before."""
        fields = self.samples.setdefault(key, {})
        if ext in fields:
            self.tally.add("dup_in_shard", name)
        elif fields and key != self._open and key not in self._reopened:
            self._reopened.add(key)
            self.tally.add("not_adjacent", f"{self.shard}:{key}")
        fields[ext] = None
        self._open = key


def _side(entry: Entry) -> str:
    """What a member is that belongs to no sample, in words that say whether readers stumble over it."""
    if entry.what != "file":
        return entry.what
    if index.hidden(entry.name):
        return "hidden in a folder" if "/" in entry.name else "hidden"
    return "without extension"


def stumbles(details: Mapping[str, int]) -> bool:
    """Whether readers stumble over these side files: they make an empty sample of each and split the one around it."""
    return bool(details.get("without extension") or details.get("hidden in a folder"))


def crossings(across: Across, schema: Schema) -> dict[str, Crossing]:
    """What is wrong with keys that lie in several shards: one sample, spread, where no member is there twice, otherwise
    more than one; and whether members lack even so."""
    found = {kind: Crossing() for kind in ("dup_across_shards", "split_over_shards", "missing_members")}
    for number, parts in across.repeated():
        fields = [set(schema.fields if part is None else map(schema.canonical, part)) for part in parts]
        union = set[str]().union(*fields)
        if sum(map(len, fields)) > len(union):
            found["dup_across_shards"].add(number, len(parts) - 1)
        else:
            found["split_over_shards"].add(number)
        if missing := [ext for ext in schema.fields if ext not in union]:
            found["missing_members"].add(number, 1, missing)
    return found
