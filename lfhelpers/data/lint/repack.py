"""A clean copy of any tar set, in our shards: whole samples alone, each once, and a list of all that was left behind.

What is copied is settled first and kept beside the new folder until the copy is done, so an interrupted call goes on
without checking everything again, and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from lfhelpers.data import shards
from lfhelpers.data.lint import pool, sources
from lfhelpers.data.lint.gather import FAULTS, Left, Plan, gather
from lfhelpers.data.lint.scan import opened
from lfhelpers.data.manifest import Manifest
from lfhelpers.errors import LfError
from lfhelpers.runs import write_atomic

KEYS, LEFT_OUT = "keys.txt", "left_out.jsonl"
"""Beside the new shards: the old shard:key of each sample, a line each; and what was not copied, and why."""
OPEN_FILES = 64


def repack(paths: sources.Place | Sequence[sources.Place], out: sources.Place, *, fields: Sequence[str] = (),
           decode: bool = True, shard_mb: float = 1024, readers: int = 4, jobs: int | None = None, seed: int = 0,
           progress: bool = True) -> Manifest:
    """Write a clean copy of tars, or of all tars in a folder, into `out`; the source is only read.

    Members of a sample are put together wherever they lie, keys become numbers, the first of duplicates is kept, and
    samples with missing, empty, damaged or (with `decode`) unreadable members are left out. keys.txt in `out` gives the
    old shard:key of each sample, left_out.jsonl names what was not copied. fields, jobs: as for lint; shard_mb,
    readers, seed: as for shards.write. Raises LfError where no sample is whole, and as shards.write does.
    """
    found, place = sources.find(paths), Path(out).absolute()
    kept = place.with_name(f".{place.name}.repack.npz")
    tars = tuple(found.tars.values())
    name = _name([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in tars], list(fields), decode)
    plan = _load(kept, name) or gather(found, fields, decode, jobs, progress)
    counts = _counts(plan.left)
    if not plan.keys:
        raise LfError(f"no sample is whole: {', '.join(f'{why}: {n:,}' for why, n in counts.items())}; see what is "
                      "wrong with lfhelpers data lint PATHS, or say which members a sample needs.")
    place.parent.mkdir(parents=True, exist_ok=True)
    _save(kept, plan, name)
    source = {"repacked": _name(list(found.tars), plan.fields, _readable("\n".join(plan.keys))), "shards": len(tars),
              "left out": counts}
    made = shards.write(place, Copy(tars, plan), len(plan.keys), shard_mb=shard_mb, seed=seed, source=source,
                        jobs=pool.choose_jobs(jobs, tars, decode=False), progress=progress, readers=readers)
    write_atomic(place / KEYS, "".join(f"{line}\n" for line in plan.keys).encode(errors="surrogateescape"))
    write_atomic(place / LEFT_OUT, b"".join(_line(left) for left in plan.left))
    kept.unlink()
    return made


@dataclass
class Copy:
    """The members of new sample `index`, read from the old shards. Picklable, for writer processes."""

    tars: tuple[Path, ...]
    plan: Plan
    _files: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def __call__(self, index: int) -> dict[str, bytes]:
        places = self.plan.places[index].tolist()
        return {ext: self._read(*place) for ext, place in zip(self.plan.fields, places, strict=True)}

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        raw, unpacked = self._file(shard)
        if raw is unpacked:
            data = os.pread(raw.fileno(), size, offset)
        else:  # seeking backwards unpacks from the start again; the order of the copy is the source's
            unpacked.seek(offset)
            data = unpacked.read(size)
        if len(data) < size:
            raise LfError(f"{self.tars[shard]} has become shorter since it was checked; repack it again.")
        return data

    def _file(self, shard: int) -> tuple[Any, Any]:
        if shard not in self._files:
            if len(self._files) >= OPEN_FILES:
                for file in self._files.pop(next(iter(self._files))):
                    file.close()
            self._files[shard] = opened(self.tars[shard])
        return self._files[shard]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}}  # a descriptor means nothing in another process


def _name(*what: Any) -> str:
    """16 hex digits that stand for all this."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _counts(left: Sequence[Left]) -> dict[str, int]:
    """How often each reason comes, with the field where it is one of a sample that was left out."""
    reasons = (f"{line.why} {line.member}" if line.why in FAULTS else line.why.partition(";")[0] for line in left)
    return dict(sorted(Counter(map(_readable, reasons)).items()))


def _readable(text: str) -> str:
    """Text without the half characters that stand for bytes that are no UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _line(left: Left) -> bytes:
    return orjson.dumps({name: _readable(text) for name, text in left._asdict().items()}) + b"\n"


def _save(kept: Path, plan: Plan, name: str) -> None:
    text = json.dumps([name, plan.fields, plan.keys, plan.left]).encode()  # orjson refuses half characters
    buffer = io.BytesIO()
    np.savez(buffer, text=np.frombuffer(text, np.uint8), places=plan.places)
    write_atomic(kept, buffer.getvalue())


def _load(kept: Path, name: str) -> Plan | None:
    """The plan of an interrupted call for the same tars, or None."""
    if not kept.exists():
        return None
    with np.load(kept) as arrays:
        known, fields, keys, left = json.loads(arrays["text"].tobytes())
        places = arrays["places"]
    return Plan(tuple(fields), tuple(keys), places, tuple(Left(*line) for line in left)) if known == name else None
