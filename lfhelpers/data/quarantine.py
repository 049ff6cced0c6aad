"""Bad samples during training: each is replaced, written down with its reason, and counted; too many end the run.

A bad sample keeps its row, so batches stay equal on all ranks; what fills the row is the next good sample of the
epoch's order, with valid = 0, so it adds nothing to the loss. Which one that is follows from the data and the plan
alone, hence it is the same under any number of workers. The price of going on is a set that shrinks in silence, which
is why there is a limit, and why a set that is known to be bad is better mended (lint.repack) than skipped over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from lfhelpers.errors import LfError
from lfhelpers.runs import write_atomic

if TYPE_CHECKING:
    from lfhelpers.data.loader import Request

SOUND = ""
_OBJECT = re.compile(r" ?<[^<>]* at 0x[0-9a-f]+>")  # where an object lies in memory: lines must not differ by that


@dataclass(frozen=True)
class Quarantine:
    """Skip bad samples, and write a line for each time one is met into folder/rank-N.jsonl.

    A rank ends the run when it has met more different ones than `max_fraction` of the dataset, or than `least`,
    whichever is more.
    """

    folder: Path
    max_fraction: float = 0.01
    least: int = 10

    def allowed(self, samples: int) -> int:
        """How many bad samples a rank may meet of a dataset of `samples`."""
        return max(self.least, int(self.max_fraction * samples))

    def file(self, rank: int) -> Path:
        """Where a rank writes: lines {shard, key, member, reason, sample, epoch, step}."""
        return self.folder / f"rank-{rank}.jsonl"


class Fetched(NamedTuple):
    """What fills a row, made from `sample`. fault: why that is not the row's own sample; empty where it is."""

    made: Any
    sample: int
    fault: str


def fetch(request: Request, step: int, index: int, make: Callable[[int], Any]) -> Fetched:
    """make(index), or what the next good sample of the epoch's order gives where bad ones are skipped.

    Only an LfError that begins with the sample's own shard:key marks it as bad; any other is raised.
    """
    try:
        return Fetched(make(index), index, SOUND)
    except LfError as error:
        fault = last = _fault(request, index, error)
    others = _following(request, step, index)
    for other in others:
        try:
            return Fetched(make(other), other, fault)
        except LfError as error:
            last = _fault(request, other, error)
    raise LfError(f"{len(others) + 1:,} samples in a row can't be used, from '{fault}' to '{last}'; check the set: "
                  f"lfhelpers data lint {request.manifest.folder} --level decode")


def _fault(request: Request, index: int, error: LfError) -> str:
    if request.bad is None or not str(error).startswith(request.manifest.where(index)):
        raise error
    return _OBJECT.sub("", str(error))


def _following(request: Request, step: int, index: int) -> list[int]:
    """As many ids after `index` in the order of the step's epoch, which begins again at its end, as may be bad."""
    assert request.bad is not None
    order = request.plan.order(request.plan.epoch(step))
    place = int(np.flatnonzero(order == index)[0])
    return np.roll(order, -place)[1:request.bad.allowed(request.manifest.samples) + 1].tolist()


class Record:
    """A rank's list of bad samples. A resumed run begins it anew at its first step, so no line is written twice."""

    def __init__(self, request: Request, bad: Quarantine) -> None:
        self._request, self._file = request, bad.file(request.rank)
        self._allowed = bad.allowed(request.manifest.samples)
        bad.folder.mkdir(parents=True, exist_ok=True)
        for file in bad.folder.glob("rank-*.jsonl"):
            if int(file.stem[5:]) >= request.plan.world and request.rank == 0:  # of a run that had more ranks
                _cut(file, request.start)
        self._samples = {line["sample"] for line in _cut(self._file, request.start)}

    def __call__(self, step: int, micro: int, faults: Sequence[str]) -> None:
        """Write down a batch's faults, one text a row. Raises LfError where more samples are bad than are allowed."""
        if not any(faults):
            return
        ids, valid = self._request.plan.slots(step, micro, self._request.rank)
        lines = [self._line(step, index, fault) for index, real, fault in zip(ids.tolist(), valid, faults, strict=True)
                 if fault and real]  # a padded row is told of where it counts
        with self._file.open("ab") as file:
            file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        self._samples.update(line["sample"] for line in lines)
        if len(self._samples) > self._allowed:
            raise LfError(f"{len(self._samples):,} bad samples are more than the {self._allowed:,} that are allowed of "
                          f"{self._request.manifest.samples:,}; they are listed in {self._file}: mend the set with "
                          "lfhelpers data lint --repack, or allow more.")

    def _line(self, step: int, index: int, fault: str) -> dict[str, Any]:
        shard, _, key = self._request.manifest.where(index).partition(":")
        rest = fault[len(shard) + len(key) + 1:]
        member = rest[1:].replace(":", " ").split(" ", 1)[0] if rest.startswith(":") else ""
        reason = rest[len(member) + 1:].lstrip(": ") if member else rest.strip()
        return {"shard": shard, "key": key, "member": member, "reason": reason, "sample": index,
                "epoch": self._request.plan.epoch(step), "step": step}


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of all ranks, by step and rank."""
    files = sorted(folder.glob("rank-*.jsonl"), key=lambda file: int(file.stem[5:]))
    return sorted((line for file in files for line in _lines(file)), key=lambda line: line["step"])


def _lines(file: Path) -> list[dict[str, Any]]:
    """A rank's lines; a last one that a kill cut short is left out."""
    return [orjson.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] if file.exists() else []


def _cut(file: Path, step: int) -> list[dict[str, Any]]:
    """Drop the lines of `step` and later ones, which will be met again; returns those before."""
    kept = [line for line in _lines(file) if line["step"] < step]
    write_atomic(file, b"".join(orjson.dumps(line) + b"\n" for line in kept))
    return kept
