"""`lfhelpers bench pitfalls`: every pitfall's two figures, whether detectors keep quiet, find, and what they cost.

A detector that is on in every run must be nearly free and must not cry wolf. So clean runs of different recipes are
made and every alarm in them is counted; runs with a planted fault follow, for each detector its own, each of which must
be found (bench.pitfalls_planted); and steps with all detectors and without take turns (bench.pitfalls_cost).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lfhelpers import pitfalls
from lfhelpers.bench import pitfalls_planted as planted
from lfhelpers.bench.pitfalls_cost import STEPS, cost
from lfhelpers.errors import LfError
from lfhelpers.measure import isolated
from lfhelpers.measure.record import Record, Row

A_RUN = 60.0
"""Seconds that a clean or a planted run may take, the start of two ranks and a compilation included."""


def run(names: Sequence[str] = pitfalls.NAMES, runs: int = 20,
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure the pitfalls of these names, and `runs` clean runs and as many of each planted fault."""
    record = Record("pitfalls", {"steps": planted.STEPS, "said": {}, "alarms": [], "failed": {}}, [], {}, 0.0)
    for name in names:
        record = _with_pitfall(record, name)
    keep(record)
    record = _with_cost(record)
    keep(record)
    alarms = isolated.call(planted.alarms, runs, timeout=A_RUN * (runs + 1))
    record.settings["alarms"] = alarms
    record = replace(record, checks=record.checks | {f"false_alarms_in_{runs}_clean": float(len(alarms))})
    for fault in planted.FAULTS:
        keep(record)
        record = _with_fault(record, fault, runs)
    return record


def _with_cost(record: Record) -> Record:
    """The record with a step's time on both sides, and the share that the detectors take."""
    compared = isolated.call(cost, timeout=600)
    rows = [Row.of(f"a step {how} detectors", [1e3 * seconds / STEPS for seconds in side], "ms")
            for how, side in (("without", compared.a), ("with", compared.b))]
    share = 1 / compared.effect.ratio - 1
    record.settings["detectors"] = str(compared.effect)
    return replace(record, rows=[*record.rows, *rows], checks=record.checks | {"detector_cost_share": share},
                   aa_spread=compared.effect.aa_spread)


def _with_fault(record: Record, fault: str, runs: int) -> Record:
    """The record with the number of runs in which this planted fault was found."""
    found = isolated.call(planted.found, fault, runs, timeout=A_RUN * (runs + 1))
    print(f"planted {fault}: found in {found} of {runs}", flush=True)
    row = Row(f"planted {fault}, found", float(found), float(found), float(found), f"of {runs} runs", runs)
    return replace(record, rows=[*record.rows, row], checks=record.checks | {f"{fault}_found": found / runs})


def _with_pitfall(record: Record, name: str) -> Record:
    """The record with one more pitfall: both figures, or why there are none."""
    try:
        row = isolated.call(pitfalls.show, name, timeout=120)
    except LfError as error:
        row = {"broken": None, "cured": None}
        record.settings["failed"][name] = str(error)
    record.settings["said"][name] = row.get("said", "")
    told = row["broken"] is not None and row["broken"] != row["cured"]
    rows = [Row.of(f"{name}, {half}", [row[half]] if row[half] is not None else [], "") for half in ("broken", "cured")]
    checks = {"pitfalls_total": record.checks.get("pitfalls_total", 0.0) + 1,
              "pitfalls_with_both_numbers": record.checks.get("pitfalls_with_both_numbers", 0.0) + told}
    print(f"{name}: {row['broken']} -> {row['cured']}", flush=True)
    return replace(record, rows=[*record.rows, *rows], checks=record.checks | checks)
