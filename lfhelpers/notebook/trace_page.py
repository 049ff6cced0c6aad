"""A trace's diagnosis as one HTML file for a colleague: verdict, pictures and tables, with nothing to load.

Everything in it is also in the JSON; the page adds the bar of the mean step and a picture of one step's lanes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from lfhelpers import runs
from lfhelpers.diagnose.trace import Diagnosis, TraceComparison
from lfhelpers.diagnose.trace.partition import CAUSES, Partition
from lfhelpers.diagnose.trace.processor import HostPartition
from lfhelpers.diagnose.trace.read import LAUNCH, OPERATOR
from lfhelpers.diagnose.trace.report import TraceReport
from lfhelpers.measure import intervals
from lfhelpers.measure.timeline import HOST, Span, window
from lfhelpers.notebook.ceiling_charts import ceiling_ranges
from lfhelpers.notebook.charts import step_bars
from lfhelpers.notebook.figures import html
from lfhelpers.notebook.tables import Table
from lfhelpers.notebook.timeline import timeline

MOST_SPANS = 6000
"""Pieces in the picture of a step: more make a file of megabytes, so a longer step is shown in part."""
NAME = 110
STYLE = ("body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1f2328;background:#fff}"
         "h1{font-size:1.35em}h2{font-size:1.1em;margin-top:1.8em}td,th{vertical-align:top}.table{overflow-x:auto}")
HOST_CAUSES = ("forward host", "backward host", "optimizer host", "launch latency")


def write(path: Path, found: Diagnosis | TraceComparison) -> None:
    """Write the page, replaced in one step."""
    runs.write_atomic(path, page(found).encode())


def page(found: Diagnosis | TraceComparison) -> str:
    """The whole page."""
    if isinstance(found, TraceComparison):
        sides = {"a": found.a, "b": found.b}
        tables = [Table.of("What changed, ms of the mean step", found.rows()),
                  Table.of("What changed in the kernels, ms of the mean step", found.group_rows())]
        body = [_bars({name: side.main for name, side in sides.items()}),
                *(_table(table) for table in tables if table.rows)]
        for name, side in sides.items():
            body += [f"<h2>{name}: {escape(side.verdict)}</h2>", *_diagnosis(side)]
    else:
        body = [_bars({found.main.trace.path.name: found.main}), *_diagnosis(found)]
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(found.verdict)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
            f"<body><main><h1>{escape(found.verdict)}</h1>{''.join(body)}</main></body></html>\n")


def bar_of(report: TraceReport) -> dict[str, float]:
    """The mean step's parts in percent, those of the host's causes together, as few as a picture can tell apart."""
    percent = report.percent
    if not report.gpu:
        return percent
    late = sum(percent[cause] for cause in HOST_CAUSES)
    work = {part: share for part, share in percent.items() if part not in CAUSES}
    return {**work, "idle: data": percent["data"], "idle: synchronisation": percent["synchronisation"],
            "idle: host late": late, "idle: other": percent["dependency"] + percent["unknown"]}


def step_spans(report: TraceReport) -> tuple[list[Span], float]:
    """(pieces of one step in lanes, beginning at 0; length in us): the step of median length, or its beginning.

    Without a GPU the lanes are the main thread as the host, other threads with operators, and exchanges.
    """
    found, trace = report.found, report.trace
    lengths = found.steps.window_ms
    chosen = lengths.index(statistics.median_low(lengths))
    start, end = int(found.steps.bounds[chosen]), int(found.steps.bounds[chosen + 1])
    host, work = np.isin(trace.kind, (LAUNCH, OPERATOR)), np.zeros(len(trace.kind), bool)
    if isinstance(found, Partition):
        work[found.rows] = True
    rows = np.flatnonzero((host | work) & (trace.end > start) & (trace.start < end))
    if len(rows) > MOST_SPANS:
        rows = rows[:MOST_SPANS]
        end = int(trace.start[rows[-1]])
    main = None if isinstance(found, Partition) else found.main
    spans = [Span(HOST, "", start / 1e3, start / 1e3)]  # so that the window begins with the step
    spans += [Span(trace.lanes[lane].name if on_gpu or main not in (None, lane) else HOST, "", float(begin),
                   float(stop))
              for lane, on_gpu, begin, stop in zip(trace.lane[rows], work[rows], trace.start[rows].clip(start) / 1e3,
                                                   trace.end[rows] / 1e3, strict=True)]
    if isinstance(found, HostPartition):
        inside = intervals.intersect(found.exchange, np.array([[start, end]]))
        spans += [Span("exchange", "", float(begin) / 1e3, float(stop) / 1e3) for begin, stop in inside]
    length = (end - start) / 1e3
    return window(spans, length), length


def _bars(reports: dict[str, TraceReport]) -> str:
    chart = step_bars({name: bar_of(report) for name, report in reports.items()})
    return html(chart.figure, chart.alt)


def _diagnosis(found: Diagnosis) -> list[str]:
    report = found.main
    parts = [f"<p>{escape(report.head())}</p>"]
    if report.gpu:
        spans, length = step_spans(report)
        chart = timeline({"step": spans}, length)
        parts.append(html(chart.figure, chart.alt, chart.table))
    if found.ceilings is not None and found.ceilings.rows():
        chart = ceiling_ranges(found.ceilings)
        parts.append(html(chart.figure, chart.alt))
    ceilings = found.ceilings.rows() if found.ceilings else [
        {"remedy": cause.remedy, "share [%]": round(cause.share, 1), "at most": f"{cause.at_most:.2f}x"}
        for cause in report.verdict.causes if cause.share >= 0.05]
    kernels = [{"kernel": kernel.name[:NAME], "group": kernel.group, "calls": round(kernel.calls, 1),
                "ms": round(kernel.ms, 3), "median [us]": round(kernel.median_us, 1)} for kernel in report.kernels]
    exchanges = [{"exchange": item.name, "calls": item.calls, "ms": item.ms, "shortest": item.shortest_ms,
                  "longest": item.longest_ms, "bytes": item.bytes} for item in report.collectives]
    tables: Sequence[tuple[str, Sequence[Mapping[str, Any]]]] = (
        ("The mean step", report.rows()), ("What a remedy could give", ceilings), ("Ranks", found.rank_rows()),
        ("Kernels by group, in the mean step", [group.row() for group in report.groups]),
        ("The costliest kernels, in the mean step", kernels), ("Exchanges, over the whole trace", exchanges))
    parts += [_table(Table.of(title, rows)) for title, rows in tables if rows]
    if found.patterns:
        parts.append(f"<h2>Patterns</h2><ul>{''.join(f'<li>{escape(str(item))}</li>' for item in found.patterns)}</ul>")
    if found.notes:
        parts.append(f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in found.notes)}</ul>")
    return parts


def _table(table: Table) -> str:
    return f'<div class="table">{table.html()}</div>'
