"""Predictions are kept, and scored with their sign when the lever is pulled: how far may one trust the next?

One line of JSON each, in `predictions.jsonl` beside the runs: first what was promised, later what came of it. A score's
error is promised over measured, less one: +0.10 promised a tenth too much. What lies within the promised range has an
error of 0 as a range, and its expected value is scored all the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.diagnose.ceilings import Ceiling
from lfhelpers.errors import LfError, nearest
from lfhelpers.measure.statistics import Effect

FILE = "predictions.jsonl"


@dataclass(frozen=True)
class Score:
    """A prediction against what was measured; `error` is signed: above 0, too much was promised."""

    lever: str
    expected: float
    low: float
    high: float
    measured: float
    error: float
    outside: float
    """By what share the measured value lies outside of the range: above 0 below it, so too much was promised."""

    def __str__(self) -> str:
        where = "inside" if not self.outside else "below" if self.outside > 0 else "above"
        return (f"{self.lever}: {self.expected:.2f}x expected, {self.measured:.2f}x measured ({self.error:+.0%}), "
                f"{where} the range {self.low:.2f}x to {self.high:.2f}x")


def keep(ceilings: Iterable[Ceiling], of: str = "", path: Path | None = None) -> None:
    """Write down what is promised; `of` names the run or job. path: another file than that beside the runs."""
    _append([{"kind": "prediction", "of": of, "cause": one.cause, "levers": [one.cause, *one.levers],
              "low": one.realistic, "high": one.ideal, "time": runs.now()} for one in ceilings], path)


def score(lever: str, effect: Effect | float, end: str = "realistic", of: str | None = None,
          path: Path | None = None) -> Score:
    """Compare the newest prediction for a lever (its name in the table, or its cause) with its effect, and keep that.

    end: which end of the range was expected: `ideal` where the cause has gone altogether, not just become less.
    Raises LfError where nothing was promised.
    """
    promised = [row for row in _read(path) if row["kind"] == "prediction" and of in (None, row["of"])]
    fitting = [row for row in promised if lever in row["levers"]]
    if not fitting:
        known = sorted({name for row in promised for name in row["levers"]})
        raise LfError(f"nothing was predicted for '{lever}'; {nearest(lever, known) if known else 'diagnose first.'}")
    row = fitting[-1]
    found = scored(lever, row["low"], row["high"], effect.ratio if isinstance(effect, Effect) else effect, end)
    _append([{"kind": "score", "of": row["of"], "cause": row["cause"], "time": runs.now(), **vars(found)}], path)
    return found


def scored(lever: str, low: float, high: float, measured: float, end: str = "realistic") -> Score:
    """A promise of low..high against a measured speed-up."""
    expected = high if end == "ideal" else low
    outside = max(0.0, low / measured - 1) or min(0.0, high / measured - 1)
    return Score(lever, expected, low, high, measured, expected / measured - 1, outside)


def scores(path: Path | None = None) -> list[Score]:
    """All scores so far, oldest first."""
    names = Score.__dataclass_fields__
    return [Score(**{name: row[name] for name in names}) for row in _read(path) if row["kind"] == "score"]


def calibration(path: Path | None = None) -> str:
    """How good predictions were, in a sentence; what a report prints."""
    found = scores(path)
    if not found:
        return "no prediction has been scored yet: pull a lever, measure it, and call score(lever, effect)"
    return calibrated(found)


def calibrated(found: Sequence[Score]) -> str:
    """The same of the scores given, of which there is one at least."""
    errors = [one.error for one in found]
    inside = sum(not one.outside for one in found)
    worst = max(found, key=lambda one: abs(one.error))
    return (f"{len(found)} prediction{'s' if len(found) > 1 else ''} scored: median error "
            f"{statistics.median(errors):+.0%} (above 0: too much was promised), {inside} inside their range, the "
            f"worst {worst.error:+.0%} for {worst.lever}")


def _place(path: Path | None) -> Path:
    return path or runs.root() / FILE


def _append(rows: Sequence[Mapping[str, Any]], path: Path | None) -> None:
    place = _place(path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("ab") as file:
            file.write(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    except OSError as error:
        raise LfError(f"{place} can't be written: {error.strerror}.") from error


def _read(path: Path | None) -> list[dict[str, Any]]:
    """The lines; a last one that a kill cut short is left out."""
    place = _place(path)
    lines = place.read_bytes().split(b"\n")[:-1] if place.exists() else []
    try:
        return [orjson.loads(line) for line in lines]
    except orjson.JSONDecodeError as error:
        raise LfError(f"{place} holds a line that is no JSON; move the file away to begin anew.") from error
