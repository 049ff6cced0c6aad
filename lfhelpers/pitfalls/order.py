"""Reads back what each step of a run was given (train.order_hash), and compares it with another run's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lfhelpers.errors import LfError
from lfhelpers.runs import Run, load


@dataclass(frozen=True)
class Fingerprint:
    """Of every step: its number, real samples, and the hashes of its samples and of their pixels.

    Two are equal where every step had the same samples in the same places with the same pixels. `pixels` is None where
    a step's images never lay on the host, or had none.
    """

    steps: tuple[int, ...]
    samples: tuple[int, ...]
    ids: tuple[int, ...]
    pixels: tuple[int | None, ...]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits for the samples of all steps: what two people read to each other."""
        return hashlib.sha256(repr((self.steps, self.ids)).encode()).hexdigest()[:16]

    def differing(self, other: Fingerprint, pixels: bool = False) -> list[int]:
        """Steps that both runs made with other samples, or, on request, other pixels where both know them."""
        mine, theirs = self._content(pixels), other._content(pixels)
        return [step for step in sorted(mine.keys() & theirs.keys()) if mine[step] != theirs[step]]

    def against(self, other: Fingerprint) -> str:
        """What differs, in one sentence; empty where nothing does in the steps that both made."""
        for what, pixels in (("samples", False), ("pixels", True)):
            if steps := self.differing(other, pixels):
                common = len(set(self.steps) & set(other.steps))
                return f"{len(steps)} of {common} steps had other {what}, first step {steps[0]}"
        return ""

    def _content(self, pixels: bool) -> Mapping[int, int]:
        values = self.pixels if pixels else self.ids
        return {step: value for step, value in zip(self.steps, values, strict=True) if value is not None}


def order_fingerprint(run: str | os.PathLike[str] | Run) -> Fingerprint:
    """The fingerprint of a finished or running run, over all its ranks, of the steps that all have written.

    Raises LfError where the run has none.
    """
    found = load(run)
    ranks = [{line["step"]: line for line in found.steps(path.name)}  # a resumed run writes steps again: the last holds
             for path in sorted(found.path.glob("order-rank-*.jsonl"))]
    if not ranks or not ranks[0]:
        raise LfError(f"run {found.id} has no order-rank-*.jsonl: it has made no step yet, or is older than the file.")
    steps = sorted(set.intersection(*(set(lines) for lines in ranks)))
    rows = [[lines[step] for lines in ranks] for step in steps]
    return Fingerprint(tuple(steps), tuple(sum(line["samples"] for line in row) for row in rows),
                       tuple(_sum(row, "ids") or 0 for row in rows), tuple(_sum(row, "pixels") for row in rows))


def _sum(lines: list[dict[str, Any]], name: str) -> int | None:
    """The sum of the ranks' hashes modulo 2**64; None where one has none."""
    if any(line[name] is None for line in lines):
        return None
    return sum(int(line[name], 16) for line in lines) % 2**64
