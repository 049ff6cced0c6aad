"""What a proof of quality found, as a record: final figures, seconds to the target, the tests with their power."""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
from scipy import stats

from lfhelpers.bench.quality import ARMS, Options, Proof, curve
from lfhelpers.measure import statistics
from lfhelpers.measure.record import Record, Row
from lfhelpers.quality.equivalence import LEAST, Equivalence, tost

UNITS = {"success": "share", "action_mse": "mse", "question_accuracy": "share", "bleu4": "share"}
FLOORS = ("success_blind", "success_expert", "action_mse_blind")
"""What a policy gets that doesn't look, and the expert; on the same scenes."""
SECONDS = ("from before the first step, without measurements; compiling and the recording of graphs are in them, in "
           "every arm, with the compile cache filled by a job beforehand; start and choice of the loader are not")
"""What a record says of its times."""


def record(proof: Proof) -> Record:
    """The record of all pairs so far."""
    options = proof.options
    curves = {arm: [curve(proof.runs[arm][seed]) for seed in proof.pairs] for arm in ARMS}
    tests = judged(curves, options)
    settings = asdict(options) | {
        "arms": list(ARMS), "pairs": proof.pairs, "margins": options.margins, "curves": curves,
        "tests": {name: vars(found) | {"power": found.power, "verdict": found.verdict, "said": str(found)}
                  for name, found in tests.items()},
        "floors": {name: curves[ARMS[0]][0][-1][name] for name in FLOORS if proof.pairs},
        "runs": {arm: {str(seed): run.id for seed, run in found.items()} for arm, found in proof.runs.items()},
        "loader": {arm: found[0].recipe.data.loader for arm, found in proof.runs.items() if 0 in found},
        "ended": proof.ended, "seconds": SECONDS,
        "compile_cache": {arm: {str(seed): run.summary.get("compile", {}).get("cache", "off")
                                for seed, run in found.items()} for arm, found in proof.runs.items()}}
    rows = [row for arm in ARMS for row in _rows(arm, curves[arm], options)]
    missed = {row.name: "not every run reached it" for row in rows if not row.n}
    settings["failed"] = proof.failed | missed
    return Record("quality", settings, [*rows, *_ratio(curves, options)], _checks(curves, tests, options),
                  _spread(proof))


def judged(curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], options: Options) -> dict[str, Equivalence]:
    """The tests of the final figures; the action MSE's is of its logarithm, so that its margin is a share of it."""
    found = {}
    for name, margin in options.margins.items():
        pair = [[points[-1][name] for points in curves[arm]] for arm in ARMS]
        if name == "action_mse":
            pair, margin = [[math.log(value) for value in arm] for arm in pair], math.log1p(margin)
        if len(pair[0]) >= LEAST:
            found[name] = tost(pair[0], pair[1], margin)
    return found


def reached(points: Sequence[Mapping[str, float]], options: Options, over: str = "seconds") -> float | None:
    """Where on its curve a run first meets both targets, in `over`; None where it never does.

    Between two measurements figures are taken to go straight; a target is met where the later of both is.
    """
    for place, point in enumerate(points):
        if not _shares(point, point, options):
            continue
        if not place:
            return float(point[over])
        before = points[place - 1]
        share = max(_shares(before, point, options))
        return float(before[over] + share * (point[over] - before[over]))
    return None


def _shares(before: Mapping[str, float], point: Mapping[str, float], options: Options) -> list[float]:
    """Of each figure the share of the way between two measurements at which it met its target; [] unless all are met.
    """
    ways = [(options.target_success - before["success"], point["success"] - before["success"]),
            (before["action_mse"] - options.target_mse, before["action_mse"] - point["action_mse"])]
    met = point["success"] >= options.target_success and point["action_mse"] <= options.target_mse
    return [min(1.0, left / way) if left > 0 else 0.0 for left, way in ways] if met else []


def _rows(arm: str, curves: Sequence[Sequence[Mapping[str, float]]], options: Options) -> list[Row]:
    if not curves:
        return []
    rows = [Row.of(f"{arm} {name}", [points[-1][name] for points in curves], UNITS[name]) for name in options.margins]
    rows.append(Row.of(f"{arm} success before", [points[0]["success"] for points in curves], "share"))
    for over, unit in (("seconds", "s"), ("samples", "samples")):
        found = [reached(points, options, over) for points in curves]
        known = [value for value in found if value is not None]
        rows.append(Row.of(f"{arm} to the target", known if len(known) == len(found) else [], unit))
    return [*rows, Row.of(f"{arm} all steps", [points[-1]["seconds"] for points in curves], "s")]


def _ratios(curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], options: Options) -> list[float]:
    """As found over full, of each pair in which both reached the target."""
    pairs = [[reached(points, options) for points in pair] for pair in zip(*(curves[arm] for arm in ARMS), strict=True)]
    return [first / last for first, last in pairs if first and last]


def _ratio(curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], options: Options) -> list[Row]:
    """The geometric mean of the pairs' ratios with its 95 % t interval; the whole range of two."""
    logs = np.log(_ratios(curves, options))
    if not len(logs):
        return []
    mean = float(logs.mean())
    half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else 0.0
    return [Row("time to the target, as_found over full", math.exp(mean), math.exp(mean - half), math.exp(mean + half),
                "x", len(logs))]


def _checks(curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], tests: Mapping[str, Equivalence],
            options: Options) -> dict[str, float]:
    """By the names that the goal gives them; a ratio only where every pair reached the target."""
    pairs = len(curves[ARMS[0]])
    checks = {f"success_{arm}": plain.median(points[-1]["success"] for points in curves[arm])
              for arm in ARMS if pairs}
    checks |= {check: tests[name].p for check, name in (("tost_success_p", "success"), ("tost_mse_p", "action_mse"))
               if name in tests}
    words = [tests[name].p for name in tests if name not in ("success", "action_mse")]
    checks |= {"tost_words_p": max(words)} if words else {}
    (ratio,) = _ratio(curves, options) or (None,)
    return checks | ({"time_to_quality_ratio": ratio.value} if ratio and ratio.n == pairs else {})


def _spread(proof: Proof) -> float:
    """By what the rates of one recipe's runs differ, the larger of both arms."""
    rates = [[run.summary["samples_per_s"] for run in proof.runs[arm].values()] for arm in ARMS]
    return max((statistics.spread(each[:-1], each[1:]) for each in rates if len(each) > 1), default=math.nan)
