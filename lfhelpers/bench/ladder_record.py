"""What a ladder found, as a record: a row for every figure of a rung, the verdicts of the gates, and the checks.

A ratio's interval is what the recipes that were run again and again differ from themselves by; it holds what drifts
between two jobs, which a single job's steps can't show. Where no recipe was run twice there is none, and it is NaN.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from lfhelpers.bench.climb import Ladder
from lfhelpers.bench.rungs import AFTERNOON, START, TOP, Rung
from lfhelpers.diagnose.report import PARTS, StepReport
from lfhelpers.measure import statistics
from lfhelpers.measure.record import Record, Row
from lfhelpers.runs import Run

Figure = Callable[[Mapping[str, Any]], float | None]
FIGURES: dict[str, Figure] = {
    "samples/s": lambda summary: summary["samples_per_s"],
    "ms": lambda summary: summary["step_ms"]["median"],
    "% MFU": lambda summary: _percent(summary["mfu"]["value"]),
    "% waiting for data": lambda summary: summary["report"]["percent"]["data_wait"],
    "% exposed communication": lambda summary: summary["report"]["percent"]["communication"],
    "% of the time with a kernel on the GPU": lambda summary: summary["utilisation"]["gpu_percent"],
    "GiB at the peak": lambda summary: summary["memory"]["peak_gib"],
    "J a sample": lambda summary: _joules(summary),
}
"""What is told of each run, by its unit; None where the machine does not tell it."""
BEFORE = "x the rung before"


def record(ladder: Ladder) -> Record:
    """The record of all that has been climbed so far."""
    spread = _spread(ladder.rungs)
    rates = {rung.name: _median(rung, "samples/s") for rung in ladder.rungs if rung.runs}
    rows = [row for rung in ladder.rungs if rung.runs for row in [*_figures(rung), *_ratios(rung, rates, spread)]]
    failed = {rung.name: rung.obstacle for rung in ladder.rungs if rung.obstacle}
    return Record(_name(ladder), _settings(ladder) | {"failed": failed}, rows, _checks(ladder, rates), spread)


def _name(ladder: Ladder) -> str:
    """One name for what may be compared: the size, and the class of a workload that isn't the built-in one."""
    use, size = ladder.start.workload.use, ladder.options.size
    if ladder.where.own:
        return f"ladder_{use.rpartition(':')[2].lower()}_{size}"
    return "ladder" if size == "full" else f"ladder_{size}"


def _settings(ladder: Ladder) -> dict[str, Any]:
    gates = {rung.lever.name: {"gate": rung.lever.equivalence} | asdict(rung.verdict)
             for rung in ladder.rungs if rung.verdict and rung.lever}
    return asdict(ladder.options) | {
        "order": [rung.name for rung in ladder.rungs if rung.runs], "gates": gates,
        "mfu": next((run.summary["mfu"]["convention"] for rung in ladder.rungs for run in rung.runs), None),
        "device": next((run.summary["device"] for rung in ladder.rungs for run in rung.runs), None),
        "predictions": {rung.name: asdict(rung.score) for rung in ladder.rungs if rung.score},
        "next_bottleneck": {rung.name: _next(ladder, rung.runs[0]) for rung in ladder.rungs if rung.runs},
        "runs": {rung.name: [run.id for run in rung.runs] for rung in ladder.rungs if rung.runs}}


def _figures(rung: Rung) -> list[Row]:
    rows = []
    for unit, figure in FIGURES.items():
        values = [value for run in rung.runs if (value := figure(run.summary)) is not None]
        rows += [Row.of(rung.name, values, unit)] if values else []
    return rows


def _ratios(rung: Rung, rates: Mapping[str, float], spread: float) -> list[Row]:
    found = [] if rung.over is None else [Row(rung.name, rung.over, rung.over / (1 + spread), rung.over * (1 + spread),
                                              BEFORE, 1)]
    for base in (START, AFTERNOON, TOP):
        if base in rates and rung.name != base:
            ratio = rates[rung.name] / rates[base]
            found.append(Row(rung.name, ratio, ratio / (1 + spread), ratio * (1 + spread), f"x {base}",
                             len(rung.runs)))
    return found


def _checks(ladder: Ladder, rates: Mapping[str, float]) -> dict[str, float]:
    verdicts = [rung.verdict for rung in ladder.rungs if rung.verdict]
    checks = {"gates_passed": float(sum(verdict.passed for verdict in verdicts)), "gates_total": float(len(verdicts))}
    top = next((rung for rung in ladder.rungs if rung.name == TOP and rung.runs), None)
    if top is None:
        return checks
    checks |= {f"full_over_{base.replace(' ', '_')}": rates[TOP] / rates[base] for base in (START, AFTERNOON)
               if base in rates}
    for check, unit in (("gpu_utilisation", "% of the time with a kernel on the GPU"),
                        ("data_wait", "% waiting for data"), ("exposed_share", "% exposed communication")):
        value = _median(top, unit)
        checks |= {} if math.isnan(value) else {check: value / 100}
    return checks


def _spread(rungs: list[Rung]) -> float:
    """By what share a recipe may differ from itself, the farthest of those that were run twice; NaN where none was.

    An anchor's first run is also that of the rung which led to it, so runs are counted by their id.
    """
    rates: dict[str, dict[str, float]] = {}
    for rung in rungs:
        rates.setdefault(rung.job.to_toml(), {}).update({run.id: run.summary["samples_per_s"] for run in rung.runs})
    repeated = [list(each.values()) for each in rates.values() if len(each) > 1]
    return max((statistics.spread(each[:-1], each[1:]) for each in repeated), default=math.nan)


def _median(rung: Rung, unit: str) -> float:
    values = [value for run in rung.runs if (value := FIGURES[unit](run.summary)) is not None]
    return plain.median(values) if values else math.nan


def _next(ladder: Ladder, run: Run) -> str:
    """The largest part of the step, which the next lever would have to shorten; and what its trace promises most of."""
    report = StepReport.from_run(run)
    part = max(PARTS, key=lambda name: report.ms[name])
    promised = ladder.ceilings(run)
    gains = promised.gains(most=1) if promised else ""
    return f"{part.replace('_', ' ')}, {report.percent[part]:.0f} % of the step" + (f"; {gains}" if gains else "")


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _joules(summary: Mapping[str, Any]) -> float | None:
    """Of all GPUs of the run: the first one's power stands for the others'."""
    watts = summary["utilisation"].get("gpu_watts")
    return None if watts is None else watts * summary["ranks"] / summary["samples_per_s"]
