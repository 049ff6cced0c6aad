"""The report on a trace, or on the traces of several ranks: the verdict first, then parts, causes, kernels, notes.

As text for a terminal, as rows for tables, and as plain data whose fields diagnose.trace.schema describes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lfhelpers.diagnose.report import percents
from lfhelpers.diagnose.trace import figures, patterns, processor, work
from lfhelpers.diagnose.trace import partition as on_gpu
from lfhelpers.diagnose.trace.collectives import Exchange, summed
from lfhelpers.diagnose.trace.patterns import Pattern
from lfhelpers.diagnose.trace.ranks import Split, split
from lfhelpers.diagnose.trace.read import Trace
from lfhelpers.diagnose.trace.verdict import Verdict, judge, thin
from lfhelpers.errors import LfError

if TYPE_CHECKING:
    from lfhelpers.diagnose.ceilings import Ceilings

VERSION = 1


@dataclass(frozen=True)
class TraceReport:
    """One rank's trace. `found` divides the GPU's time, or the main thread's where there is no GPU work."""

    trace: Trace
    found: on_gpu.Partition | processor.HostPartition
    verdict: Verdict
    whole: Mapping[str, Any]
    confidence: Mapping[str, Any]
    patterns: tuple[Pattern, ...]
    groups: tuple[work.Group, ...]
    kernels: tuple[work.Kernel, ...]
    collectives: tuple[Exchange, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, trace: Trace) -> TraceReport:
        """The report on a trace that was read."""
        found = on_gpu.partition(trace)
        if found is not None and found.length <= 0:
            raise LfError(f"{trace.path} holds GPU work that takes no time at all, so there is nothing to divide.")
        if found is None:
            host = processor.partition(trace)
            if host.length <= 0:
                raise LfError(f"{trace.path} holds events that take no time at all, so there is nothing to divide.")
            notes = (*trace.notes, *host.steps.notes,
                     "CPU-only trace: there is no GPU work in it, so the main thread's time is divided")
            return cls(trace, host, judge(host), figures.whole_of_host(host), {}, (), (), (), tuple(summed(trace)),
                       notes)
        confidence, doubts = figures.confidence(found)
        notes = (*trace.notes, *found.steps.notes, *figures.unrecognised(found), *doubts)
        return cls(trace, found, judge(found), figures.whole(found), confidence, tuple(_patterns(found)),
                   tuple(work.groups(found)), tuple(work.top(found)), tuple(summed(trace)), notes)

    @property
    def gpu(self) -> bool:
        """Whether the trace holds GPU work."""
        return isinstance(self.found, on_gpu.Partition)

    @property
    def step_ms(self) -> Mapping[str, float | None]:
        """Mean and median of the windows, and of the host's own steps where they are marked."""
        host, windows = self.found.steps.host_ms, self.found.steps.window_ms
        return {"mean": self.found.length / self.found.windows / 1e6, "median": statistics.median(windows),
                "host_mean": statistics.fmean(host) if host else None,
                "host_median": statistics.median(host) if host else None}

    @property
    def ms(self) -> dict[str, float]:
        """Milliseconds of each part in the mean step."""
        return {part: spent / self.found.windows / 1e6 for part, spent in self.found.parts.items()}

    @property
    def percent(self) -> dict[str, float]:
        """Each part's share to a tenth; they sum to exactly 100."""
        return percents(self.ms)

    def rows(self) -> list[dict[str, Any]]:
        """A row a part, and last the whole step."""
        ms, percent = self.ms, self.percent
        rows = [{"part": self.titled(part), "ms": round(spent, 3), "percent": percent[part]}
                for part, spent in ms.items()]
        return [*rows, {"part": "whole step", "ms": round(sum(ms.values()), 3),
                        "percent": round(sum(percent.values()), 1)}]

    def titled(self, part: str) -> str:
        """A part's name for a reader: idle causes say that they are."""
        return f"idle: {part}" if self.gpu and part in on_gpu.CAUSES else part

    def head(self) -> str:
        """What was read, in a line."""
        steps, trace = self.found.steps, self.trace
        rank = "" if trace.rank is None else f", rank {trace.rank}" + (f" of {trace.world}" if trace.world else "")
        device = trace.gpu or ("a GPU" if self.gpu else "CPU")
        return (f"{trace.path.name}: {trace.events:,} events, {device}{rank}; {self.found.windows} window(s) by "
                f"{steps.source}, mean {self.step_ms['mean']:.3f} ms, median {self.step_ms['median']:.3f} ms")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        steps = self.found.steps
        after = dict(self.found.after) if isinstance(self.found, on_gpu.Partition) else {}
        return {
            "file": self.trace.path.name, "rank": self.trace.rank, "world": self.trace.world, "gpu": self.trace.gpu,
            "device": "gpu" if self.gpu else "cpu", "events": self.trace.events, "bound": self.verdict.bound,
            "verdict": self.verdict.sentence,
            "steps": {"source": steps.source, "found": steps.found, "windows": self.found.windows,
                      "names": list(steps.names), "window_ms": steps.window_ms, "host_ms": steps.host_ms,
                      **self.step_ms},
            "parts": {"ms": self.ms, "percent": self.percent},
            "after_ms": {cause: spent / self.found.windows / 1e6 for cause, spent in after.items()},
            "causes": [asdict(cause) for cause in self.verdict.causes],
            "patterns": [asdict(pattern) for pattern in self.patterns],
            "groups": work.as_rows(self.groups), "kernels": work.as_rows(self.kernels),
            "collectives": work.as_rows(self.collectives),
            "whole": dict(self.whole), "confidence": dict(self.confidence), "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Diagnosis:
    """The reports on a job's ranks, in order of rank, and their comparison; `skipped` says what was not read."""

    reports: tuple[TraceReport, ...]
    split: Split | None
    skipped: tuple[str, ...]

    @classmethod
    def of(cls, traces: list[Trace], skipped: tuple[str, ...] = ()) -> Diagnosis:
        """Of several traces, all have a rank of their own."""
        reports = tuple(TraceReport.of(trace) for trace in traces)
        if len(reports) < 2:
            return cls(reports, None, skipped)
        return cls(reports, split({report.trace.rank or 0: report.found for report in reports}), skipped)

    @property
    def main(self) -> TraceReport:
        """The rank that the verdict is about: the one that the others wait for, or else the first."""
        late = self.split.late if self.split else None
        return next((report for report in self.reports if late is not None and report.trace.rank == late),
                    self.reports[0])

    @cached_property
    def ceilings(self) -> Ceilings | None:
        """What each remedy could win, by running the steps again; None where the evidence doesn't allow it."""
        from lfhelpers.diagnose.tiers import of_trace  # here: it stands on this module

        return of_trace(self)

    @property
    def verdict(self) -> str:
        """The verdict in a sentence or two."""
        straggler, of_main = self.split.straggler if self.split else None, self.main.verdict
        sentence = of_main.with_gains(self.ceilings.gains()) if self.ceilings else of_main.sentence
        if straggler is None or of_main.bound is None:
            return sentence
        return f"Straggler: {straggler.evidence} ({straggler.share:.0f} % of the step). Of that rank: {sentence}"

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Of the main rank, and a straggler."""
        straggler = self.split.straggler if self.split else None
        return (*([straggler] if straggler else []), *self.main.patterns)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know, of the main rank, of the comparison, and of files not read."""
        return (*self.main.notes, *(self.split.notes if self.split else ()), *self.skipped)

    def rank_rows(self) -> list[dict[str, Any]]:
        """A row a rank; empty for one rank."""
        if self.split is None:
            return []
        idle = {report.trace.rank: 100 - sum(report.percent[part] for part in on_gpu.PARTS[:3])
                for report in self.reports if report.gpu}
        step = {report.trace.rank: report.step_ms["mean"] for report in self.reports}
        return [{"rank": item.rank, "step ms": round(float(step[item.rank] or 0), 3),
                 "idle %": round(idle[item.rank], 1) if item.rank in idle else None, "collectives": item.collectives,
                 "transfer ms": round(item.transfer_ms, 3), "wait ms": round(item.wait_ms, 3),
                 "exposed wait ms": round(item.exposed_wait_ms, 3)}
                for item in self.split.ranks]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, as diagnose.trace.schema describes it."""
        ranks = None
        if self.split:
            ranks = {"ranks": [asdict(item) for item in self.split.ranks], "late": self.split.late,
                     "straggler": asdict(self.split.straggler) if self.split.straggler else None,
                     "notes": list(self.split.notes)}
        return {"version": VERSION, "verdict": self.verdict, "bound": self.main.verdict.bound,
                "main_rank": self.main.trace.rank, "reports": [report.as_dict() for report in self.reports],
                "ceilings": self.ceilings.as_dict() if self.ceilings else None,
                "ablation": None, "across_ranks": ranks, "skipped": list(self.skipped)}


def _patterns(found: on_gpu.Partition) -> list[Pattern]:
    """The patterns; of too little evidence, that of compilation alone, which needs no statistics."""
    seen = patterns.find(found)
    return seen if thin(found) is None else [pattern for pattern in seen if pattern.name == "recompiling"]
