"""Measured plans of recomputation, and the choice among them: the front, the fastest that fits, and the scores.

Points are measurements (train.planner makes them); what was predicted is kept beside them, to be scored and never to be
chosen by. A plan that did not fit is a point too, with a sentence in place of its figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lfhelpers.errors import LfError
from lfhelpers.levers.activations_plan import Family, Profile, recomputed_ms

GIB = 2**30
FORETOLD: tuple[Family, ...] = ("rule", "blocks")
"""Families whose peak is predicted before they run."""


class NoRoom(LfError):
    """Plans were measured, and all take more than the limit."""


@dataclass(frozen=True)
class Point:
    """What a candidate was measured to take. Bytes and milliseconds of a step; NaN and 0 where it did not fit."""

    name: str
    family: Family
    fields: dict[str, Any]
    ms: float = math.nan
    low: float = math.nan
    high: float = math.nan
    """95 % interval of the time against that without a plan, as a ratio (1.08: 8 % longer); `ratio` is its middle."""
    ratio: float = math.nan
    saved: int = 0
    peak: int = 0
    predicted: int = 0
    """Peak bytes by the walk over the step: before it ran for whole blocks; for `ops` and `budget`, whose bytes no
    profile knows, from those that their own forward saved, so it isn't scored there."""
    trouble: str = ""
    """Why there is no measurement: 'does not fit: needs about 3 GiB'."""
    aa_spread: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether it ran."""
        return not self.trouble

    def __str__(self) -> str:
        measured = f"{self.ms:.3g} ms, {self.saved / GIB:.3g} GiB saved for backward, peak {self.peak / GIB:.3g} GiB"
        return f"{self.name}: {self.trouble or measured}"


@dataclass(frozen=True)
class Survey:
    """All points of a model on this hardware, and the profile they were predicted from."""

    profile: Profile
    points: tuple[Point, ...] = field(default_factory=tuple)

    @property
    def fitting(self) -> list[Point]:
        """The points that ran."""
        return [point for point in self.points if point.fits]


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both saved bytes and time, the fastest first."""
    fitting = sorted((point for point in points if point.fits), key=lambda point: (point.ratio, point.saved))
    front: list[Point] = []
    for point in fitting:
        if not front or point.saved < front[-1].saved:
            front.append(point)
    return front


def choose(points: Sequence[Point], limit: float | None = None) -> Point:
    """The fastest point with a peak of at most `limit` bytes. Raises NoRoom where none is so small."""
    fitting = [point for point in points if point.fits]
    if not fitting:
        raise NoRoom(f"no plan fits: {points[0].trouble}; take a smaller batch.micro.")
    small = [point for point in fitting if limit is None or point.peak <= limit]
    if not small:
        least = min(fitting, key=lambda point: point.peak)
        raise NoRoom(f"no plan stays within {(limit or 0) / GIB:.3g} GiB: the smallest, '{least.name}', takes "
                      f"{least.peak / GIB:.3g} GiB; take a smaller batch.micro.")
    return min(small, key=lambda point: point.ratio)


def largest_micro(point: Point, standing: int, micro: int, limit: float) -> int:
    """The micro-batch that would fit, if all but what stands grows with it; measured at `micro`."""
    return math.floor((limit - standing) / max(1, point.peak - standing) * micro)


def fastest_with_room(found: Survey, micro: int, limit: float, times: float) -> Point:
    """The fastest point that lets the micro-batch grow to `times` that without a plan; else the one nearest to it."""
    room = {point.name: largest_micro(point, found.profile.standing, micro, limit) for point in found.fitting}
    plain = next((room[point.name] for point in found.fitting if point.family == "none"), 0)
    enough = [point for point in found.fitting if room[point.name] >= times * plain and point.family != "none"]
    if not enough:
        return for_largest_batch(found.points, found.profile.standing, micro, limit)
    return min(enough, key=lambda point: point.ratio)


def for_largest_batch(points: Sequence[Point], standing: int, micro: int, limit: float) -> Point:
    """The point that lets the micro-batch grow most; among equals the fastest."""
    fitting = [point for point in points if point.fits]
    if not fitting:
        raise LfError("no plan fits; take a smaller batch.micro.")
    return max(fitting, key=lambda point: (largest_micro(point, standing, micro, limit), -point.ratio))


def saved_within(points: Sequence[Point], more_time: float) -> float:
    """The largest share of activation bytes freed by a plan of at most `more_time` (0.08: 8 %) more step time."""
    plain = next(point for point in points if point.family == "none")
    return max(1 - point.saved / plain.saved for point in points if point.fits and point.ratio <= 1 + more_time)


def peak_error(points: Sequence[Point]) -> float:
    """The largest relative error of a peak among plans that ran and were predicted before; 0 where none did.

    Those are whole blocks, rules of thumb among them; `Point.predicted` says why not the others.
    """
    return max((abs(point.predicted / point.peak - 1) for point in points if point.fits and point.family in FORETOLD),
               default=0.0)


def rival(found: Survey, rule: Point) -> Point | None:
    """The choice by bargain that saves least among those that cost no more than the rule, by the profile; or None."""
    price = recomputed_ms(found.profile, rule.fields["blocks"])
    cheap = [point for point in found.fitting if point.family == "blocks"
             and recomputed_ms(found.profile, point.fields.get("blocks", ())) <= price * (1 + 1e-9)]
    return min(cheap, key=lambda point: point.saved, default=None)


def above_rules(points: Sequence[Point], spread: float = 0.0) -> bool | None:
    """Whether each rule of thumb has a plan beside it that frees as much in no more time (within the A/A spread).

    None where no rule fits, so that there is nothing to compare.
    """
    rules = [point for point in points if point.fits and point.family == "rule"]
    others = [point for point in points if point.fits and point.family not in ("rule", "none")]
    if not rules:
        return None
    return all(any(other.saved <= rule.saved and other.ratio <= rule.ratio * (1 + spread) for other in others)
               for rule in rules)
