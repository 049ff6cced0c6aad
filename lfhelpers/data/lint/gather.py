"""Where the members of whole samples lie, wherever their parts are, and what must be left behind: the plan of a copy.

All keys are kept as text, about half a kilobyte a sample, since parts of one sample may lie at both ends of a set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lfhelpers.data.lint import Inspection, index
from lfhelpers.data.lint.headers import Damage, members
from lfhelpers.data.lint.scan import Data
from lfhelpers.data.lint.schema import Schema
from lfhelpers.data.lint.sources import Sources, compare
from lfhelpers.data.lint.survey import Survey, Task
from lfhelpers.errors import LfError

BAD = {"unreadable_image": "unreadable", "gif_image": "GIF", "checksum_differs": "damaged"}
"""What a member is called that is a finding of these kinds."""
FAULTS = ("missing", "empty", *BAD.values())
"""Why a whole sample is left out, for one of its members."""


class Place(NamedTuple):
    """A member: number of its shard, offset and size in bytes, its name there."""

    shard: int
    offset: int
    size: int
    name: str


class Left(NamedTuple):
    """Something that is not copied: shard, key (empty where it belongs to no sample), member, and why."""

    shard: str
    key: str
    member: str
    why: str


@dataclass(frozen=True, eq=False)
class Plan:
    """The new samples. keys: the old shard:key of each; places: int64 [samples, fields, (shard, offset, size)]."""

    fields: tuple[str, ...]
    keys: tuple[str, ...]
    places: NDArray[np.int64]
    left: tuple[Left, ...]


Samples = dict[str, dict[str, Place]]


def gather(sources: Sources, fields: Sequence[str], decode: bool, jobs: int | None, progress: bool) -> Plan:
    """Walk over all shards and settle what is copied."""
    work = Inspection(sources, jobs, fields, progress)
    surveys = work.survey(checksums=True, decode=decode, all_names=True)
    schema = work.schema(surveys)
    names = list(sources.tars)
    calls = [(Task(path, names[number], False, False), schema, number)
             for number, path in enumerate(sources.tars.values())]
    samples, left = Samples(), list[Left]()
    for name, (theirs, lines) in zip(names, work.each(collect, calls, False, "collecting"), strict=True):
        left += lines
        for key, found in theirs.items():
            left += _join(samples.setdefault(key, {}), found, name, key)
    bad = _bad(sources, surveys)
    for key in list(samples):
        if why := list(_faults(samples[key], schema.fields, names, bad)):
            first = next(iter(samples.pop(key).values()))
            left += [Left(names[first.shard], key, ext, reason) for ext, reason in why]
    left += [Left(names[place.shard], key, place.name, "fewer than half of the samples have this member")
             for key, sample in samples.items() for ext, place in sample.items() if ext not in schema.fields]
    places = [[samples[key][ext][:3] for ext in schema.fields] for key in samples]
    keys = tuple(f"{names[row[0][0]]}:{key}" for key, row in zip(samples, places, strict=True))
    shape = len(keys), len(schema.fields), 3
    return Plan(_packable(schema.fields), keys, np.array(places, np.int64).reshape(shape), tuple(left))


def collect(task: Task, schema: Schema, number: int, progress: Callable[[int], None]) -> tuple[Samples, list[Left]]:
    """(the samples of shard `number`, its members that belong to none or come twice)."""
    samples, left = Samples(), list[Left]()
    try:
        with Data(task.path, whole=False, progress=progress) as data:
            for entry in members(data):
                parts = schema.split(entry.name) if entry.what == "file" and not index.hidden(entry.name) else None
                if parts is None:
                    left.append(Left(task.name, "", entry.name, "belongs to no sample"))
                    continue
                found = {schema.canonical(parts[1]): Place(number, entry.offset, entry.size, entry.name)}
                left += _join(samples.setdefault(parts[0], {}), found, task.name, parts[0])
    except (Damage, OSError) as error:
        left.append(Left(task.name, "", "", f"damaged shard; it {error}"))
    return samples, left


def _join(sample: dict[str, Place], more: Mapping[str, Place], shard: str, key: str) -> Iterator[Left]:
    """Add members to a sample; those that it has already are duplicates."""
    for ext, place in more.items():
        if ext in sample:
            yield Left(shard, key, place.name, "duplicate; the first one is kept")
        else:
            sample[ext] = place


def _bad(sources: Sources, surveys: Sequence[Survey]) -> dict[str, str]:
    """Why a member is not fit, by shard:member."""
    tallies = [compare(sources, dict(zip(sources.tars.values(), surveys, strict=True)), limit=None),
               *(found.tally for found in surveys)]
    return {name: why for tally in tallies for kind, why in BAD.items() for name in tally.examples.get(kind, ())}


def _faults(sample: Mapping[str, Place], fields: Sequence[str], shards: Sequence[str],
            bad: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(field, missing, empty, unreadable or damaged) of all that keeps a sample from being whole."""
    for ext in fields:
        place = sample.get(ext)
        if place is None:
            yield ext, "missing"
        elif not place.size:
            yield ext, "empty"
        elif why := bad.get(f"{shards[place.shard]}:{place.name}"):
            yield ext, why


def _packable(fields: Sequence[str]) -> tuple[str, ...]:
    """The fields in letters that our shards allow. Raises LfError where two become one."""
    names = tuple(re.sub(r"[^a-z0-9_.]", "_", ext).strip(".") for ext in fields)
    if len(set(names)) < len(names) or not all(names):
        raise LfError(f"members {', '.join(fields)} can't be told apart in a-z, 0-9, _ and dots; rename them.")
    return names


