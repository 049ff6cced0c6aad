"""Several runs side by side, as facts: what each measured, how it relates to the first, and what forbids comparing.

Pages, Markdown and JSON of `lfhelpers report` are all made from these.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import orjson

from lfhelpers.diagnose.report import StepReport
from lfhelpers.errors import LfError
from lfhelpers.recipe import NAMED, Recipe, diff, recipe
from lfhelpers.runs import Run, load

SIZES = ("workload.use", "workload.size", "workload.base")


@dataclass(frozen=True)
class Side:
    """One run: its short name, its records, and its step report, or the sentence that says why it has none."""

    label: str
    run: Run
    state: str
    report: StepReport | None
    trouble: str

    @property
    def environment(self) -> dict[str, Any]:
        """environment.json, or {} where the run did not get that far."""
        return self.run.read("environment.json") or {}

    def quality(self) -> dict[str, float]:
        """Held-out metrics by name; without their curve."""
        found = self.run.summary.get("quality", {})
        return {name: value for name, value in found.items() if isinstance(value, int | float)}


def sides(given: Sequence[str | os.PathLike[str] | Run]) -> list[Side]:
    """The runs, each with a label of its own. Raises LfError for one that isn't there, and where none has a step."""
    found = [load(run) for run in given]
    unique = list({run.path: run for run in found}.values())
    names = Counter(run.recipe.name for run in unique)
    built = [_side(run, run.recipe.name if names[run.recipe.name] == 1 else _told_apart(run)) for run in unique]
    if not any(side.report for side in built):
        raise LfError(f"there is nothing to report: {'; '.join(side.trouble for side in built)}")
    return built


def base(compared: Sequence[Side]) -> Side:
    """What the others are measured against: the first that has a report."""
    return next(side for side in compared if side.report)


def report_of(side: Side) -> StepReport:
    """The report of a run that has one."""
    assert side.report is not None, side.trouble
    return side.report


def rows(compared: Sequence[Side]) -> list[dict[str, Any]]:
    """A row a run for people: speed, ratio to the base, waiting, use of the hardware, memory, loss."""
    first = base(compared)
    return [_row(side, first, several=len(compared) > 1) for side in compared]


def verdict(compared: Sequence[Side]) -> list[str]:
    """A sentence a run: how many times the base's samples a second it trains; of a lone run, where its time went."""
    first, step = base(compared), report_of(base(compared))
    if len(compared) == 1:
        part, share = max(step.percent.items(), key=lambda item: item[1])
        return [f"{first.label} trains {step.samples_per_s:.1f} samples a second; {share:.0f} % of its step is "
                f"{part.replace('_', ' ')}."]
    return [_against(side, first.label, step) for side in compared if side is not first]


def cautions(compared: Sequence[Side]) -> list[str]:
    """What a reader must know before believing the ratios, one sentence each."""
    first, found = base(compared), []
    for side in compared:
        found += [f"{side.label}: {note}." for note in (side.report.notes if side.report else ())]
        if side.state != "done":
            reason = side.run.status["reason"].partition("\n")[0]
            found.append(f"{side.label} is {side.state}{f': {reason}' if reason else ''}.")
        if side.environment.get("commit", {}).get("dirty"):
            found.append(f"{side.label} ran from code with changes that no commit holds.")
        if side is not first:
            found += [f"{side.label} and {first.label} can't be compared: {why}." for why in _apart(first, side)]
    if len(compared) > 1:
        found.append("Ratios are of single runs, not interleaved, so they carry no interval; lfhelpers ladder and "
                     "lfhelpers bench step give one.")
    return found


def recipe_rows(compared: Sequence[Side]) -> list[dict[str, Any]]:
    """A row a recipe field in which the runs differ, a column a run."""
    first = compared[0]
    fields = sorted({field for side in compared for field in diff(first.run.recipe, side.run.recipe)})
    flat = {side.label: side.run.recipe.flat() for side in compared}
    return [{"field": field, **{label: shown(values.get(field)) for label, values in flat.items()}} for field in fields]


def where_rows(compared: Sequence[Side]) -> list[dict[str, Any]]:
    """A row a fact on where the runs ran, a column a run."""
    facts = {side.label: _where(side) for side in compared}
    topics = list(dict.fromkeys(topic for found in facts.values() for topic in found))
    return [{"fact": topic, **{label: found.get(topic) for label, found in facts.items()}} for topic in topics]


def again(side: Side) -> str:
    """The command that runs the recipe again, on data that its caller has: named recipe and fields that differ."""
    job = side.run.recipe
    name = job.name if job.name in NAMED else "competent"
    changes = {field: new for field, (_, new) in diff(recipe(name), job).items() if field != "data.path"}
    words = [f"{field}={_value(value)}" for field, value in changes.items()]
    ranks = [f"--nproc {side.report.ranks}"] if side.report and side.report.ranks > 1 else []
    return " ".join(["lfhelpers launch", f"recipe={name}", *map(shlex.quote, words), *ranks])


def shown(value: Any) -> str:
    """A recipe's value for a table; of an absolute path the last part, since a report leaves its machine."""
    if isinstance(value, str) and PurePath(value).is_absolute():
        return PurePath(value).name
    return _value(value)


def _value(value: Any) -> str:
    """As the command line takes it."""
    if isinstance(value, list | tuple | dict):
        return orjson.dumps(value).decode()
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _side(run: Run, label: str) -> Side:
    try:
        report, trouble = StepReport.from_run(run), ""
    except LfError as error:
        report, trouble = None, f"{str(error).partition(';')[0].rstrip('.')}."  # the rest names a path of this machine
    return Side(label, run, run.status["state"], report, trouble)


def _told_apart(run: Run) -> str:
    """A recipe's name with the end of the run's, where several runs are of one recipe."""
    return run.id if run.recipe.name in run.id else f"{run.recipe.name} {run.id}"


def _row(side: Side, first: Side, several: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"run": side.label, "state": side.state}
    report, summary = side.report, side.run.summary
    if report is None:
        return row
    mfu = report.mfu["value"]
    row |= {"ms a step": report.step_ms["mean"], "p95": report.step_ms["p95"], "samples/s": report.samples_per_s}
    row |= {f"times {first.label}": report.samples_per_s / report_of(first).samples_per_s} if several else {}
    return row | {
        "data wait [%]": report.percent["data_wait"], "MFU [%]": None if mfu is None else 100 * mfu,
        "peak [GiB]": summary.get("memory", {}).get("peak_gib"), "last loss": summary.get("loss", {}).get("last"),
        "skipped steps": summary.get("steps", {}).get("skipped")}


def _against(side: Side, label: str, step: StepReport) -> str:
    if side.report is None:
        return f"{side.label} has no figures: {side.trouble}"
    ratio = side.report.samples_per_s / step.samples_per_s
    return (f"{side.label} trains {ratio:.2f} times as many samples a second as {label} "
            f"({side.report.samples_per_s:.1f} against {step.samples_per_s:.1f}).")


def _apart(first: Side, side: Side) -> list[str]:
    """Why a ratio of the two would mean nothing."""
    step, changed = report_of(first), diff(first.run.recipe, side.run.recipe)
    found = [f"they train other models ({field} is {shown(old)} and {shown(new)})"
             for field, (old, new) in changed.items() if field in SIZES]
    if side.report and side.report.hardware != step.hardware:
        found.append(f"they ran on other hardware ({step.hardware} and {side.report.hardware})")
    if side.report and side.report.ranks != step.ranks:
        found.append(f"they ran on {step.ranks} and {side.report.ranks} ranks")
    return found


def _where(side: Side) -> dict[str, Any]:
    known, report = side.environment, side.report
    versions, hardware, commit = (known.get(key, {}) for key in ("versions", "hardware", "commit"))
    job: Recipe = side.run.recipe
    precision = side.run.summary.get("precision", job.precision.mode)
    batch = f"{report.ranks if report else '?'} x {job.batch.micro} x {job.batch.accumulate}"
    named = {"run": side.run.id, "hardware": report.hardware if report else None, "cores": hardware.get("cores"),
             "driver": hardware.get("driver"), "python": versions.get("python"), "torch": versions.get("torch"),
             "commit": (commit.get("hash") or "")[:10] or None, "time": known.get("time"),
             "model": f"{shown(job.workload.use)}, {job.workload.size}", "ranks x micro x accumulate": batch,
             "timed steps": report.steps if report else None, "precision": precision, "seed": job.seed}
    return {topic: value for topic, value in named.items() if value is not None}
