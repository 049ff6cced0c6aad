"""`lfhelpers bench memory`: where memory goes, what recomputation frees and costs, and what the freed memory wins.

`plans` measures every plan of the planner and the published rules of thumb on the same step, in turns with the step
without a plan. `widened` trains the whole decoder with the text loss, where activations dominate: the largest
micro-batch and the throughput there, with and without a plan. `pace` is throughput over the micro-batch, with the knee.
On a CPU everything runs at `tiny`: exact bytes and the mechanism, no claim about time. Plans are always measured
anew, but a search that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from lfhelpers.bench import memory_batch
from lfhelpers.bench.memory_batch import Part, Scale
from lfhelpers.errors import LfError
from lfhelpers.levers import activations_choice as choice
from lfhelpers.levers.activations_choice import GIB, Point, Survey
from lfhelpers.levers.activations_plan import QUICK, Effort
from lfhelpers.measure import hardware, isolated
from lfhelpers.measure.record import Record, Row
from lfhelpers.train import footprint, plan_trial, planner

GPU = Scale("full", "full", 64, 16, 8, (2, 4, 8, 16, 32, 64), 512)
CPU = Scale("competent", "tiny", 8, 8, 2, (1, 2, 4, 8), 64, ("device=cpu",))
PARTS = ("plans", "widened", "pace")
VERDICTS = {True: "every rule of thumb has a plan as good beside it",
            False: "not every rule of thumb has a plan as good beside it",
            None: "no rule of thumb was measured that fits, so none is compared"}
"""By what `choice.above_rules` says."""


def run(parts: Sequence[str] = (), micro: int | None = None, effort: Effort = QUICK, overrides: Sequence[str] = (),
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure the parts (none: all); `keep` is given the record so far after each. micro: that of `plans`.

    Raises LfError for an unknown part; a part that fails is a sentence in the record.
    """
    if unknown := set(parts) - set(PARTS):
        raise LfError(f"--part {min(unknown)}: there are {', '.join(PARTS)}.")
    scale = GPU if hardware.device()[0] == "cuda" else CPU
    scale = replace(scale, micro=micro or scale.micro, overrides=(*scale.overrides, *overrides))
    settings: dict[str, Any] = {"scale": asdict(scale), "effort": asdict(effort), "failed": {},
                                "batches": "random, on the device", "saved": "by saved-tensor hooks, each storage once"}
    record = Record("memory", settings, [], {}, 0.0)
    measures: dict[str, Callable[[], Part]] = {
        "plans": lambda: plans(scale, effort), "widened": lambda: memory_batch.widened(scale),
        "pace": lambda: memory_batch.pace(scale)}
    for part in parts or PARTS:
        try:
            found = measures[part]()
        except LfError as error:
            settings["failed"][part] = str(error)
            print(f"{part}: {error}", flush=True)
            continue
        settings[part] = found.notes
        record = replace(record, rows=[*record.rows, *found.rows], checks=record.checks | found.checks,
                         aa_spread=max(record.aa_spread, found.spread))
        print(f"{part}: {found.line}", flush=True)
        keep(record)
    return record


def plans(scale: Scale, effort: Effort) -> Part:
    """Every plan's bytes, peak and time against the step without one."""
    job = scale.job(scale.micro)
    found = planner.survey(job, effort, again=True)
    where = isolated.call(footprint.describe, job, timeout=300)
    checks = {"bytes_saved_at_8pct": choice.saved_within(found.points, 0.08),
              "bytes_saved_at_20pct": choice.saved_within(found.points, 0.20),
              "peak_prediction_error": choice.peak_error(found.points)}
    spread = max((point.aa_spread for point in found.fitting), default=0.0)
    above = choice.above_rules(found.points, spread)
    line = (f"{100 * checks['bytes_saved_at_8pct']:.0f} % of activation bytes saved for 8 % of time, "
            f"{100 * checks['bytes_saved_at_20pct']:.0f} % for 20 %; "
            f"{VERDICTS[above]}")
    notes = {"survey": asdict(found), "where": where, "recipe": job.flat(), "above_rules": above}
    return Part(line, _rows(found, effort), checks, notes, spread)


def survey_of(notes: dict[str, Any]) -> Survey:
    """The survey in the settings of a record's part."""
    return plan_trial.restored(notes["survey"])


def _rows(found: Survey, effort: Effort) -> list[Row]:
    rows = []
    for point in found.points:
        if not point.fits:
            rows.append(Row.of(point.name, [], point.trouble))
            continue
        rows += [Row(point.name, point.ratio, point.low, point.high, "x step time", effort.pairs),
                 _exact(point, point.ms, "ms"), _exact(point, point.saved / GIB, "GiB saved"),
                 _exact(point, point.peak / GIB, "GiB peak")]
    return rows


def _exact(point: Point, value: float, unit: str) -> Row:
    return Row(point.name, value, value, value, unit, 1)
