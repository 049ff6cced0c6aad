"""Three ways to a faster recipe, side by side: the search, one knob at a time, and what a trace promises.

All are read off a study's own trials, so that they are of one machine and one budget. One knob at a time is what a
ladder does: each knob's best position is found by itself, and what all win together is taken to be their product.
Where that isn't what they win, knobs act on each other, and only a search has seen it. A trace costs one job and names
causes, of which some have no knob.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lfhelpers.diagnose.ceilings import REMEDIES, Ceilings
from lfhelpers.tune import space
from lfhelpers.tune.report import Result

Line = Mapping[str, Any]
Positions = Mapping[str, str]


def ways(result: Result, promised: Ceilings | None = None) -> list[dict[str, Any]]:
    """A row each of `of_lines`, and one of what the base's traced step promises, where its ceilings are given."""
    lines, rows = result.lines, of_lines(result.lines)
    if promised is None:
        return rows
    path, search = promised.path(), result.search
    pulled = [space.labels(search.knobs, job) for name, job in search.starts.items() if name.startswith("ceiling of ")]
    own = space.labels(search.knobs, search.base)
    won = _won(lines, pulled[-1]) if pulled and pulled[-1] != own else None
    takes = ", ".join(REMEDIES[cause].words for cause, _ in path) or "nothing, no stall is worth a remedy"
    return [*rows, _row("what a trace promises", takes, path[-1][1] if path else 1.0, won, 1)]


def of_lines(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Rows of `search` and `one knob at a time`, from tune.report's lines, the base first.

    way, takes (what differs from the base), promised and won (times the base's rate; None: nobody promised, or no trial
    was there), jobs.
    """
    best = [line for line in lines if line["took over"]][-1]
    base, alone = lines[0]["positions"], [line for line in lines if len(_turned(lines, line)) == 1]
    wins: dict[str, tuple[float, str]] = {}
    for line in alone:
        (knob,), ratio = _turned(lines, line), _over(lines, line)
        if ratio is not None and ratio > wins.get(knob, (1.0, ""))[0]:
            wins[knob] = ratio, line["positions"][knob]
    together = dict(base) | {knob: position for knob, (_, position) in wins.items()}
    takes = ", ".join(f"{knob} {position}" for knob, (_, position) in wins.items()) or "as the base"
    return [_row("search", best["knobs"], None, _over(lines, best), len(lines)),
            _row("one knob at a time", takes, math.prod(ratio for ratio, _ in wins.values()), _won(lines, together),
                 1 + len(alone))]


def _row(way: str, takes: str, promised: float | None, won: float | None, jobs: int) -> dict[str, Any]:
    return {"way": way, "takes": takes, "promised": promised, "won": won, "jobs": jobs}


def _turned(lines: Sequence[Line], line: Line) -> list[str]:
    """The knobs that are not where the base has them."""
    return [knob for knob, position in line["positions"].items() if position != lines[0]["positions"][knob]]


def _won(lines: Sequence[Line], positions: Positions) -> float | None:
    return next((_over(lines, line) for line in lines if line["positions"] == positions), None)


def _over(lines: Sequence[Line], line: Line) -> float | None:
    """Its rate over the base's; what kept to no limit has won nothing, what was stopped counts as far as it came."""
    rate = {"done": line["samples/s"], "slower": line.get("until stopped")}.get(line["ended"])
    return rate / lines[0]["samples/s"] if rate else None
