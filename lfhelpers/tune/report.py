"""What a study found, for a notebook, a terminal and the record: its trials, what mattered, and its checks.

Each trial is kept with its reason, also those that failed: a table of successes alone would look as if the space had no
walls. Importances say how much of the good trials a knob explains (PED-ANOVA, Watanabe 2023), not what it wins by
itself: that is what the ladder is for.
"""

from __future__ import annotations

import math
import statistics as plain
import warnings
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from rich.table import Table

from lfhelpers.errors import LfError
from lfhelpers.measure.record import Record, Row
from lfhelpers.recipe import Recipe, diff
from lfhelpers.tune import space
from lfhelpers.tune.search import Search
from lfhelpers.tune.verify import Verified

HAND_SET = "full"
LEAST = 4
"""Trials with a figure, below which no knob's importance can be told."""


@dataclass(frozen=True)
class Result:
    """A study as it stands; `verified` where its winner was asked."""

    search: Search
    verified: Verified | None = None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """A line a trial that had a job, oldest first; what differs from the base under `knobs`.

        until stopped: samples/s of the blocks of a trial that was seen to be slower, None for others.
        """
        return [_line(self.search, trial) for trial in self.search.finished]

    @property
    def recipe(self) -> Recipe:
        """The winner's recipe if it was verified, else the base's."""
        found = self.verified.recipe if self.verified else None
        return found or self.search.given

    @property
    def sentence(self) -> str:
        """What was found, and why the search ended."""
        best = self.search.incumbent
        found = self.verified.sentence if self.verified else \
            f"trial {best.number} leads with {best.user_attrs['samples_per_s']:.4g} samples/s, not verified yet."
        return f"{found} The search has ended: {self.search.ended}." if self.search.ended else found

    def importances(self) -> dict[str, float]:
        """{knob: share}, the most important one first; empty where too few trials have a figure."""
        complete = [trial for trial in self.search.finished if trial.value is not None]
        if len(complete) < LEAST:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {name: float(share) for name, share in
                    optuna.importance.get_param_importances(self.search.study).items()}

    def record(self) -> Record:
        """For runs/reference: a row a trial, and the checks trials, failed_trials, minutes, knobs, winner_*."""
        lines = self.lines
        rows = [Row(f"trial {line['trial']}", line["samples/s"], line["low"], line["high"], "samples/s", line["n"])
                for line in lines if line["samples/s"]]
        options = self.search.options
        settings = {
            "study": options.name, "base": self.search.given.name, "recipe": self.search.base.to_toml(),
            "nproc": options.nproc, "steps": options.steps, "margin": options.margin, "allow": options.allow,
            "memory_gib": self.search.memory_gib, "space": space.rows(self.search.base, self.search.knobs),
            "trials": lines, "importances": self.importances(), "found": self.sentence,
            "failed": {f"trial {line['trial']}": f"{line['ended']}: {line['why']}" for line in lines
                       if line["ended"] not in ("done", "slower")}}
        return Record("study", settings, rows, self._checks(lines), _spread(self.verified))

    def _checks(self, lines: list[dict[str, Any]]) -> dict[str, float]:
        failed = [line for line in lines if line["ended"] not in ("done", "slower")]
        checks = {"trials": float(len(lines)), "failed_trials": float(len(failed)), "minutes": self.search.minutes,
                  "knobs": float(len(self.search.knobs))}
        if self.verified is None:
            return checks
        checks["winner_gates_passed"] = float(self.verified.verdict is not None and self.verified.verdict.passed)
        over = self.verified.ratio if self.search.given.name == HAND_SET else self._over_start(lines)
        return checks | ({} if over is None else {"winner_over_full": over})

    def _over_start(self, lines: list[dict[str, Any]]) -> float | None:
        """Of the search's own figures, where the hand-set recipe was a start value and not the base."""
        rates = {line["start"]: line["samples/s"] for line in lines if line["samples/s"]}
        won = self.verified.trial if self.verified else None
        best = next((line["samples/s"] for line in lines if line["trial"] == (won or lines[0]["trial"])), None)
        return best / rates[HAND_SET] if best and rates.get(HAND_SET) else None


def table(result: Result) -> Table:
    """For a terminal."""
    drawn = Table(title=f"study {result.search.options.name}: {len(result.lines)} trials, "
                        f"{result.search.minutes:.1f} minutes", caption=result.sentence, caption_justify="left")
    heads = ["trial", "samples/s", "loss", "peak GiB", "ended", "knobs", "why"]
    for head in heads:
        drawn.add_column(head, justify="right" if head in heads[:4] else "left", overflow="fold")
    for line in result.lines:
        drawn.add_row(*("" if line[head] is None else f"{line[head]:.4g}" if isinstance(line[head], float) else
                        str(line[head]) for head in heads))
    return drawn


def _line(search: Search, trial: FrozenTrial) -> dict[str, Any]:
    known = trial.user_attrs
    figures = {"samples/s": known.get("samples_per_s"), "low": known.get("low"), "high": known.get("high"),
               "n": known.get("n"), "loss": known.get("loss"), "peak GiB": known.get("peak_gib")}
    seen = trial.intermediate_values.values() if known["ended"] == "slower" else ()
    figures["until stopped"] = plain.median(seen) if seen else None
    over = {name: value for name, value in known.get("limits", {}).items() if value > 0}
    why = known.get("why", "") or known.get("paired", "")
    if over:
        why = "; ".join(f"{name} {value:.1%} over its limit" for name, value in over.items())
    return {"trial": trial.number, "start": known.get("start", ""), "knobs": _turned(search, trial)} | figures | {
        "ended": "over its limits" if over else known["ended"], "why": why, "took over": bool(known.get("took_over")),
        "seconds": known["seconds"], "run": known.get("run"), "positions": dict(trial.params)}


def _turned(search: Search, trial: FrozenTrial) -> str:
    """The knobs that are not where the base has them and have an effect."""
    try:
        apart = diff(search.base, search.job(trial))
    except LfError:
        return ""
    return ", ".join(f"{knob.name} {trial.params[knob.name]}" for knob in search.knobs
                     if any(name in apart for name in knob.positions[trial.params[knob.name]])) or "as the base"


def _spread(verified: Verified | None) -> float:
    return verified.high / verified.ratio - 1 if verified and verified.trial is not None else math.nan
