"""How many samples at once: the largest micro-batch that fits, the smallest that keeps the device busy, and the rest.

Memory is a line, fixed + per sample x micro-batch, so two probes say where it will end, and a third one, at the end
itself, whether that is true (allocators round, kernels change with the shape). Probes run where a crash costs nothing:
one that doesn't fit is a point with what it would need. Whether a larger one is worth its memory is a matter of time
(measure.pace).

The effective batch, ranks x micro x accumulate, is another matter: it decides what is learnt. `accumulated` holds it;
`larger` grows it under a named rule for the learning rate, as a lever of class `changed`, which must pass that gate.

Sources: linear rule, Goyal et al. 2017 (SGD); square root, Krizhevsky 2014 and, for Adam, Malladi et al. 2022.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lfhelpers.errors import LfError
from lfhelpers.levers.table import Lever
from lfhelpers.recipe import Recipe

GIB = 2**30
GROWS = 0.001
"""Growth from one probe to the other, as a share, below which something else than samples sets the peak."""
CLOSE = 16
"""The search ends when largest and next differ by 1/16."""
RULES: Mapping[str, tuple[Callable[[float], float], str]] = {
    "keep": (lambda factor: 1.0, "learning rate as it is: fewer updates of the same size, so less is learnt"),
    "sqrt": (math.sqrt, "learning rate x the square root of the factor: Adam's noise per sample stays the same"),
    "linear": (float, "learning rate x the factor: SGD's rule, for Adam mostly too much"),
}
"""Rules for a larger effective batch: by what the learning rate is multiplied, and what is assumed."""


class DoesNotFit(LfError):
    """A probe had no room; the sentence says what was tried."""


class MemoryModel(NamedTuple):
    """Bytes of a step: `fixed`, and `per_sample` for each sample of a micro-batch."""

    fixed: float
    per_sample: float

    def peak(self, micro: int) -> float:
        """Predicted bytes of a micro-batch."""
        return self.fixed + self.per_sample * micro

    def largest(self, limit: float) -> int:
        """The largest micro-batch of at most `limit` bytes; 0 where a single sample is too much."""
        if not self.per_sample:
            return sys.maxsize if self.fixed <= limit else 0
        return max(0, math.floor((limit - self.fixed) / self.per_sample * (1 + 1e-12)))


class Point(NamedTuple):
    """One probed micro-batch: its peak in bytes (needed, where it doesn't fit), and that in words."""

    micro: int
    bytes: float
    fits: bool
    text: str


@dataclass(frozen=True)
class Found:
    """What a search found: the largest micro-batch (0: none), the model (None: too little fits for one), all points."""

    largest: int
    model: MemoryModel | None
    points: list[Point]


def memory_model(probe: Callable[[int], float], small: int = 1, large: int = 2, most: int = 1024) -> MemoryModel:
    """The line through two probes, `probe(micro)` -> peak bytes of a step. Raises DoesNotFit where a probe does.

    Where the peak doesn't grow, because the optimizer's update sets it, larger ones are taken, up to `most` samples,
    until two lie beyond that.
    """
    low, high, flat = probe(small), probe(large), False
    while large < most and (flat or high < low * (1 + GROWS)):
        flat = high < low * (1 + GROWS)
        small, large, low = large, min(2 * large, most), high
        high = probe(large)
    slope = max(0.0, (high - low) / (large - small))
    return MemoryModel(low - slope * small, slope)


def search(probe: Callable[[int], float], limit: float, most: int = 1024, small: int = 1, large: int = 2) -> Found:
    """The largest micro-batch up to `most` that fits, in a handful of probes.

    probe(micro) gives peak bytes or raises DoesNotFit; what is above `limit` bytes doesn't fit either. The model's two
    probes come first, then the end that it predicts; a better end where there is room left, halves where there is none,
    down to 1/16.
    """
    probes = _Probes(probe, limit)
    with contextlib.suppress(DoesNotFit):
        probes(small)
        probes.model = memory_model(probes, small, large, most)
        best, end = large, min(probes.model.largest(limit), most)
        while end > best + best // CLOSE:
            line = memory_model(probes, best, end, most=end)
            best, end = end, min(line.largest(limit), most)
    best, over = probes.bounds(most)
    while best and over <= most and over - best > max(1, best // CLOSE):
        with contextlib.suppress(DoesNotFit):
            probes((best + over) // 2)
        best, over = probes.bounds(most)
    return Found(best, probes.model, probes.points)


class _Probes:
    """Probes each micro-batch once, and keeps the points."""

    def __init__(self, probe: Callable[[int], float], limit: float) -> None:
        self._probe = probe
        self._limit = limit
        self.model: MemoryModel | None = None
        self.points: list[Point] = []

    def __call__(self, micro: int) -> float:
        """Peak bytes. Raises DoesNotFit, the second time too."""
        known = next((point for point in self.points if point.micro == micro), None)
        if known is None:
            known = self._point(micro)
            self.points.append(known)
        if not known.fits:
            raise DoesNotFit(known.text)
        return known.bytes

    def bounds(self, most: int) -> tuple[int, int]:
        """The largest that fits (0: none), and the smallest that doesn't (most + 1 where all did)."""
        return (max((point.micro for point in self.points if point.fits), default=0),
                min((point.micro for point in self.points if not point.fits), default=most + 1))

    def _point(self, micro: int) -> Point:
        why = ""
        try:
            used = self._probe(micro)
        except DoesNotFit as error:
            used, why = self.model.peak(micro) if self.model else math.nan, f" ({error})"
        if not why and used <= self._limit:
            return Point(micro, used, True, f"{used / GIB:.3g} GiB")
        need = "more than there is" if math.isnan(used) else f"about {max(used, self._limit) / GIB:.3g} GiB"
        return Point(micro, used, False, f"does not fit: needs {need}{why}")


def accumulated(job: Recipe, largest: int) -> Recipe:
    """The recipe with the same effective batch in micro-batches of at most `largest`, as few of them as divide it."""
    samples = job.batch.micro * job.batch.accumulate
    if largest < 1:
        raise LfError("not even one sample fits; take a smaller model, or activations.plan='all'.")
    micro = max(each for each in range(1, min(largest, samples) + 1) if samples % each == 0)
    return job.with_(**{"batch.micro": micro, "batch.accumulate": samples // micro})


def larger(job: Recipe, micro: int, accumulate: int, lr: float, rule: str | None = None) -> Lever:
    """Another batch as a lever; `lr` is the peak learning rate in force. The samples seen stay the same.

    With the effective batch as it is, arithmetic is `reordered` and no rule needed; otherwise the lever is of class
    `changed`, and says by which of RULES the rate follows. Raises LfError where a rule is missing or unknown.
    """
    factor = micro * accumulate / (job.batch.micro * job.batch.accumulate)
    fields: dict[str, Any] = {"batch.micro": micro, "batch.accumulate": accumulate}
    if factor == 1:
        return Lever(f"micro-batch {micro} x {accumulate}", "the same effective batch in other pieces", fields,
                     "reordered")
    if rule is None or rule not in RULES:
        raise LfError(f"the effective batch would be {factor:g} times what it is: say what the learning rate is to do, "
                      f"one of {', '.join(RULES)}.")
    scale, why = RULES[rule]
    fields |= {"steps": max(1, math.ceil(job.steps / factor)), "optimizer.lr": lr * scale(factor)}
    return Lever(f"effective batch x {factor:g}, {rule} rule",
                 f"{why}; {lr:g} becomes {lr * scale(factor):g}, {job.steps} steps become {fields['steps']}", fields,
                 "changed")
