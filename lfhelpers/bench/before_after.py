"""The before/after table in the article's shape: what was measured beside what was claimed, and a verdict on each line.

Columns are the three recipes; rates come from a ladder's record or from three run folders, time to the target and
quality from `lfhelpers bench quality`. A claim of a ratio is reproduced if ours reaches it within the spread by which
a recipe differs from itself. What this machine can't show says why, instead of a figure that looks like an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lfhelpers.bench import article
from lfhelpers.bench.article import BUSY, CLAIMS, EXCHANGE, PER_GPU, QUALITY, STEP_TIME, TO_TARGET, TOTAL, Claim
from lfhelpers.bench.ladder_record import FIGURES
from lfhelpers.errors import LfError
from lfhelpers.measure.record import Record
from lfhelpers.quality.equivalence import ALPHA, LEAST
from lfhelpers.runs import Run

RECIPES = ("as_found", "competent", "full")
REPRODUCED, EXCEEDED, NOT_HERE = "reproduced", "exceeded", "not reproducible here because"
UNITS = {TOTAL: "samples/s", STEP_TIME: "ms", BUSY: "% of the time with a kernel on the GPU",
         EXCHANGE: "% exposed communication"}
BEYOND = {"MFU": "% MFU", "peak memory": "GiB at the peak", "waiting for data": "% waiting for data",
          "energy": "J a sample"}
"""Figures that the article doesn't give, by the unit of their rows."""


@dataclass(frozen=True)
class Measured:
    """The figures of the three recipes, {recipe: {unit: value}}, and what they hold for."""

    figures: Mapping[str, Mapping[str, float]]
    device: str
    size: str
    micro: int
    ranks: int
    spread: float = 0.0
    """Share by which a recipe differs from itself; 0 where that isn't known."""
    rungs: Mapping[str, float] = field(default_factory=dict)
    """Samples/s of a ladder's rungs."""

    def __str__(self) -> str:
        where = f"{self.ranks} GPU{'s' * (self.ranks > 1)}" if self.device == "cuda" else \
            f"a CPU, {self.ranks} rank{'s' * (self.ranks > 1)}"
        return f"size {self.size}, {self.micro} samples a step and rank, {where}"

    def pair(self, unit: str) -> tuple[float, float] | None:
        """The figure as found and with the full stack; None where either is missing."""
        first, last = (self.figures[name].get(unit) for name in (RECIPES[0], RECIPES[-1]))
        return None if first is None or last is None else (first, last)


def of_ladder(record: Record) -> Measured:
    """The recipes of a ladder's record. Raises LfError where it hasn't reached all three."""
    rows = {(row.name, row.unit): row.value for row in record.rows}
    figures = {name: {unit: rows[name.replace("_", " "), unit] for unit in FIGURES
                      if (name.replace("_", " "), unit) in rows} for name in RECIPES}
    if missing := [name for name, found in figures.items() if not found]:
        raise LfError(f"the ladder's record has no figures of {', '.join(missing)}; let `lfhelpers ladder` go on.")
    settings = record.settings
    device = settings.get("device") or ("cuda" if record.hardware["gpus"] else "cpu")
    rungs = {row.name: row.value for row in record.rows if row.unit == "samples/s"}
    spread = 0.0 if math.isnan(record.aa_spread) else record.aa_spread
    return Measured(figures, device, settings["size"], settings["micro"], settings["nproc"], spread, rungs)


def of_runs(as_found: Run, competent: Run, full: Run) -> Measured:
    """The recipes of three run folders. Raises LfError where one isn't done, or they aren't of one batch and size."""
    runs = dict(zip(RECIPES, (as_found, competent, full), strict=True))
    for run in runs.values():
        if not run.summary:
            raise LfError(f"run {run.id} has no summary.json, so it isn't done; wait for it, or name another.")
    kinds = {(run.summary["device"], run.recipe.workload.size, run.summary["micro"], run.summary["accumulate"],
              run.summary["ranks"]) for run in runs.values()}
    if len(kinds) > 1:
        raise LfError("before and after must be of one device, size, batch and number of ranks; these runs are of "
                      f"{' and '.join(map(str, sorted(kinds)))}.")
    ((device, size, micro, _, ranks),) = kinds
    figures = {name: {unit: value for unit, figure in FIGURES.items() if (value := _known(figure, run)) is not None}
               for name, run in runs.items()}
    return Measured(figures, device, size, micro, ranks)


def lines(measured: Measured, quality: Record | None = None) -> list[dict[str, Any]]:
    """A dictionary a line: `figure`, the three recipes, `the article` (its claim) and `verdict`; None: not measured."""
    return [*(_line(claim, measured, quality) for claim in CLAIMS), *_beyond(measured)]


def published(measured: Measured) -> list[dict[str, Any]]:
    """LoongForge's stages beside the ladder's rungs of the same kind, both as ratios to their own baseline."""
    base = measured.rungs.get("as found")
    found = []
    for stage in article.STAGES:
        climbed = [rate for name in stage.levers if (rate := measured.rungs.get(f"+ {name}")) is not None]
        ours = climbed[-1] / base if climbed and base else None
        found.append({"stage": stage.name, f"LoongForge, micro-batch {article.STAGES_MICRO}": stage.ratio,
                      f"here, micro-batch {measured.micro}": ours,
                      "our rung": next((name for name in reversed(stage.levers) if f"+ {name}" in measured.rungs),
                                       "not climbed")})
    whole = measured.pair("samples/s")
    last = {"stage": "our full stack", f"here, micro-batch {measured.micro}": whole[1] / whole[0] if whole else None,
            "our rung": "full"}
    return [*found, last]


def sentences(measured: Measured) -> list[str]:
    """The arithmetic in words: how much less time a ratio of throughput is, the article's and ours."""
    (claim,) = (claim for claim in CLAIMS if claim.figure == STEP_TIME)
    found = [f"The article's {claim.before:.0f} ms and {claim.after:.0f} ms: {in_words(claim.ratio or 1)}."]
    if pair := measured.pair("samples/s"):
        found.append(f"Here, {measured}: {in_words(pair[1] / pair[0])}.")
    days = next(claim for claim in CLAIMS if claim.figure == TO_TARGET)
    rate = next(claim for claim in CLAIMS if claim.figure == PER_GPU)
    assert days.before and days.after and rate.ratio
    found.append(f"At {rate.ratio:.1f} times the throughput {days.before:.0f} days would be "
                 f"{days.before / rate.ratio:.1f}, not {days.after:.1f}: the article's own lines don't agree.")
    return found


def in_words(ratio: float) -> str:
    """A ratio of throughput as a share of time.

    >>> in_words(2.3)
    '2.3 times the throughput is 56.5 % less time (and 130 % more throughput)'
    """
    if ratio < 1:
        return f"{ratio:.2g} times the throughput is {100 * (1 / ratio - 1):.1f} % more time"
    return (f"{ratio:.2g} times the throughput is {article.less_time(ratio):.1f} % less time (and "
            f"{100 * (ratio - 1):.0f} % more throughput)")


def _line(claim: Claim, measured: Measured, quality: Record | None) -> dict[str, Any]:
    if claim.figure in (TO_TARGET, QUALITY):
        return _learnt(claim, measured, quality)
    values: dict[str, float | None]
    if claim.figure == PER_GPU:
        values = {name: found["samples/s"] / measured.ranks for name, found in measured.figures.items()}
    else:
        values = {name: found.get(UNITS[claim.figure]) for name, found in measured.figures.items()}
    return {"figure": claim.figure, **values, "the article": _claimed(claim),
            "verdict": _verdict(claim, values[RECIPES[0]], values[RECIPES[-1]], measured)}


def _learnt(claim: Claim, measured: Measured, quality: Record | None) -> dict[str, Any]:
    """The two lines that only runs to a target can fill; `competent` isn't among those."""
    line: dict[str, Any] = {"figure": claim.figure, **dict.fromkeys(RECIPES), "the article": _claimed(claim)}
    if quality is None:
        return line | {"verdict": f"{NOT_HERE} there is no record of `lfhelpers bench quality` here"}
    checks = quality.checks
    if claim.figure == QUALITY:
        return line | {"figure": "quality (success)", "as_found": checks.get("success_as_found"),
                       "full": checks.get("success_full"), "verdict": _equal(quality)}
    seconds = {row.name: row.value for row in quality.rows if row.unit == "s"}
    pair = [seconds.get(f"{name} to the target", math.nan) for name in (RECIPES[0], RECIPES[-1])]
    if any(map(math.isnan, pair)) or "time_to_quality_ratio" not in checks:
        return line | {"verdict": f"{NOT_HERE} not all runs reached the target"}
    line |= {"figure": f"{claim.figure} [s], size {quality.settings['size']}", "as_found": pair[0], "full": pair[1]}
    on_cpu = not quality.hardware["gpus"]
    return line | {"verdict": f"{NOT_HERE} there is no GPU" if on_cpu else _reached(
        claim, checks["time_to_quality_ratio"], 0.0)}


def _equal(quality: Record) -> str:
    """The verdict on equality, of all figures together; tests that too few pairs allow for are not there."""
    tests = {name: quality.checks.get(f"tost_{name}_p") for name in ("success", "mse", "words")}
    if tests["success"] is None or tests["mse"] is None:
        pairs = len(quality.settings.get("pairs", ()))
        return f"not shown: {pairs} pair{'s' * (pairs != 1)} of runs, and equality needs at least {LEAST}"
    failed = [name for name, p in tests.items() if p is not None and not p <= ALPHA]
    return f"not shown for {' and '.join(failed)}: see power and margins" if failed else REPRODUCED


def _beyond(measured: Measured) -> list[dict[str, Any]]:
    found = []
    for figure, unit in BEYOND.items():
        values = {name: each.get(unit) for name, each in measured.figures.items()}
        if any(value is not None for value in values.values()):
            found.append({"figure": f"{figure} [{unit.split()[0]}]", **values, "the article": "not given",
                          "verdict": ""})
    return found


def _claimed(claim: Claim) -> str:
    """'125 to 288 samples/s, 2.30 times'."""
    if claim.before is None or claim.after is None:
        return "equal within statistical error"
    under = "under " if claim.sense == "level below" else ""
    change = f", {claim.ratio:.2f} times" if claim.ratio else ""
    return f"{claim.before:,.6g} to {under}{claim.after:,.6g} {claim.unit}{change}"


def _verdict(claim: Claim, before: float | None, after: float | None, measured: Measured) -> str:
    if measured.device != "cuda":
        return f"{NOT_HERE} there is no GPU"
    if claim.ranks and measured.ranks < 2:
        return f"{NOT_HERE} one GPU " + ("exchanges no gradients" if claim.figure == EXCHANGE else
                                         "shows nothing of many")
    if before is None or after is None:
        return f"{NOT_HERE} it was not measured"
    if claim.ratio:
        return _reached(claim, after / before if claim.sense == "higher" else before / after, measured.spread)
    assert claim.before is not None and claim.after is not None
    good = after >= claim.after if claim.sense == "level above" else after < claim.after
    if not good:
        return f"not reproduced: {after:.1f} % at the end"
    better = before >= claim.after if claim.sense == "level above" else before < claim.after
    return f"{REPRODUCED}, but as found it was there already" if better else REPRODUCED


def _reached(claim: Claim, ratio: float, spread: float) -> str:
    assert claim.ratio
    if ratio / (1 + spread) > claim.ratio:
        return f"{EXCEEDED}: {ratio:.2f} times"
    return f"{REPRODUCED if ratio * (1 + spread) >= claim.ratio else 'not reproduced'}: {ratio:.2f} times"


def _known(figure: Any, run: Run) -> float | None:
    """A figure of a run's summary; older summaries lack some."""
    try:
        return figure(run.summary)
    except KeyError:
        return None
