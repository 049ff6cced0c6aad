"""From evidence to ceilings and a verdict: an ablation's where there is one, a trace's for where inside, or either.

What the two say of one thing in different words is compared, and a difference above a tenth of the step is a note.
"""

from __future__ import annotations

from pathlib import Path

from lfhelpers.diagnose import timelines
from lfhelpers.diagnose.ablation import CACHED, NO_UPDATE, Ablation
from lfhelpers.diagnose.ceilings import Ceilings
from lfhelpers.diagnose.trace import diagnose_trace
from lfhelpers.diagnose.trace.load import traces_of
from lfhelpers.diagnose.trace.processor import HostPartition
from lfhelpers.diagnose.trace.report import Diagnosis, TraceReport
from lfhelpers.errors import LfError
from lfhelpers.runs import Run

DISAGREE = 0.1
"""Share of the step from which on two tiers' different figures are said."""


def of_trace(found: Diagnosis) -> Ceilings | None:
    """The ceilings of a trace; None where the evidence is too thin for a verdict, or can't be run again."""
    report = found.main
    timeline = timelines.of_trace(report.found, _late_ms(found)) if report.verdict.bound is not None else None
    return Ceilings(timeline, "a trace") if timeline is not None else None


def of_ablation(found: Ablation, traces: Path | None = None) -> Ceilings:
    """The ceilings of an ablation; `traces`: the folder of the traces that were recorded beside it."""
    if traces is None or not traces.is_dir():
        return Ceilings(timelines.of_ablation(found), "an ablation")
    report = diagnose_trace(traces).main
    inner = timelines.of_trace(report.found, observer_us=_observer_us(found, report))
    if inner is None:
        return Ceilings(timelines.of_ablation(found), "an ablation",
                        ("the trace beside the ablation can't be run again, so nothing is said of launches and loops",))
    return Ceilings(timelines.of_ablation(found, inner), "an ablation, with a trace for what it leaves open",
                    tuple(_disagreements(found, report, inner)))


def of_run(run: Run) -> Ceilings:
    """The ceilings of a run that was ablated or traced. Raises LfError where it was neither, or its trace is too thin.
    """
    ablation = Ablation.of_run(run)
    traces = traces_of(run.path)
    if ablation is not None:
        return of_ablation(ablation, traces)
    if traces is None:
        raise LfError(f"run {run.id} was neither ablated nor traced, so nothing tells what a remedy could win; start "
                      "`lfhelpers ablate`, or `lfhelpers launch --profile`.")
    return of_path(traces)


def of_path(path: Path) -> Ceilings:
    """The ceilings of a trace, or of a folder of the traces of ranks. Raises LfError where the evidence is too thin."""
    found = diagnose_trace(path)
    ceilings = of_trace(found)
    if ceilings is None:
        raise LfError(f"{path} allows no ceilings: {found.main.verdict.head}.")
    return ceilings


def _observer_us(found: Ablation, report: TraceReport) -> float:
    """What the profiler costs an event: as tried aside, and no more than it has made the steps longer."""
    events = timelines.operators(report.found) / report.found.windows
    longer = report.found.length / report.found.windows / 1e6 - (found.step_ms(CACHED) or found.full_ms)
    return min(found.observer_us, max(0.0, 1e3 * longer / events)) if events else 0.0


def _late_ms(found: Diagnosis) -> float:
    """What the other ranks wait for the main one in a step, by their traces."""
    straggler = found.split.straggler if found.split else None
    return straggler.share / 100 * float(found.main.step_ms["mean"] or 0.0) if straggler else 0.0


def _disagreements(found: Ablation, report: TraceReport, inner: timelines.Timeline) -> list[str]:
    cached = found.step_ms(CACHED) or found.full_ms
    notes = []
    if abs(inner.base_ms - cached) > DISAGREE * found.full_ms:
        notes.append(f"on cached batches the step takes {cached:.1f} ms by the clock and {inner.base_ms:.1f} ms in the "
                     "trace, the profiler's own cost taken off: shares of the trace are used, not its times")
    if isinstance(report.found, HostPartition) and NO_UPDATE in found.ms:
        by_trace = report.found.percent("optimizer") / 100 * cached
        if abs(by_trace - found.saved_ms(NO_UPDATE)) > DISAGREE * found.full_ms:
            notes.append(f"without the optimizer the step is {found.saved_ms(NO_UPDATE):.1f} ms shorter, and the trace "
                         f"puts {by_trace:.1f} ms there: the former is used")
    return notes
