"""The playbook's charts, each a pure function: numbers in; figure, finding and table out, ready for `show(*chart)`.

Bars are labelled directly and hatched, lines are dashed and labelled at their end: nothing rests on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lfhelpers.notebook.figures import COLOURS, DASHES, HATCHES, INK, MARKERS, blank, thin
from lfhelpers.notebook.tables import Table, number

PARTS = ("data_wait", "host_to_device", "forward", "backward", "communication", "optimizer", "other", "captured")
"""The parts of a step report, in the order of a step; they keep colour and hatch in every chart."""


class Chart(NamedTuple):
    """What `figures.show` takes: the figure, a sentence that states its finding, and its numbers."""

    figure: Figure
    alt: str
    table: Table


def step_bars(reports: Mapping[str, Mapping[str, float]], unit: str = "%") -> Chart:
    """Where a step's time goes, a stacked bar a run: {label: {part: share or ms}}, `unit` "%" or "ms".

    The parts are those of a run's summary["report"]["percent"] or ["ms"]; parts that no run has are left out.
    """
    parts = [part for part in dict.fromkeys([*PARTS, *(key for report in reports.values() for key in report)])
             if any(report.get(part) for report in reports.values())]
    figure, axes = blank(height=1.15 + 0.55 * len(reports))
    total = max(sum(report.values()) for report in reports.values())
    for index, part in enumerate(parts):
        _segments(axes, reports, parts[:index], part, total, unit)
    axes.set_yticks(range(len(reports)), list(reports))
    axes.invert_yaxis()
    axes.set_xlim(0, total)
    axes.set_xlabel(f"step time [{unit}]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8.5, handlelength=1.6)
    rows = [{"part": part.replace("_", " ")} | {label: round(report.get(part, 0.0), 2)
                                                for label, report in reports.items()} for part in parts]
    return Chart(figure, _largest_parts(reports, unit), Table.of(f"Where the step's time goes [{unit}]", rows))


def loss_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Chart:
    """Loss over steps, a line a run: {label: rows of steps.jsonl}; steps without a finite loss are left out.

    The table compares the means of the first and the last tenth of each run, because single steps are noisy.
    """
    figure, axes = blank()
    ends: list[tuple[float, str, str]] = []
    rows = []
    for index, (label, steps) in enumerate(runs.items()):
        points = [(row["step"], row["loss"]) for row in steps if row["loss"] is not None and math.isfinite(row["loss"])]
        x, y = zip(*thin(points), strict=True)
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(x, y, linewidth=1.4, label=label, color=colour, linestyle=DASHES[index % len(DASHES)],
                  marker=MARKERS[index % len(MARKERS)], markevery=max(1, len(x) // 8), markersize=4)
        ends.append((y[-1], label, colour))
        losses = [loss for _, loss in points]
        tenth = max(1, len(losses) // 10)
        rows.append({"run": label, "steps": points[-1][0], "first tenth": sum(losses[:tenth]) / tenth,
                     "last tenth": sum(losses[-tenth:]) / tenth})
    axes.set_xlabel("optimizer step", color=INK, fontsize=9)
    axes.set_ylabel("loss", color=INK, fontsize=9)
    _label_ends(axes, ends)
    finding = "; ".join(f"{row['run']} from {number(row['first tenth'])} to {number(row['last tenth'])}"
                        for row in rows)
    return Chart(figure, f"Mean loss from the first to the last tenth of the steps: {finding}.",
                 Table.of("Loss, mean of the first and the last tenth of the steps", rows))


def bars_with_interval(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """One bar a row with its interval: {"label", "value", "unit"} and, where there is one, "low" and "high".

    The finding compares every row with the first, so put what others are measured against there. Units must agree.
    """
    figure, axes = blank(height=0.9 + 0.5 * len(rows))
    unit = rows[0].get("unit", "")
    assert all(row.get("unit", "") == unit for row in rows), "one chart, one unit"
    highest = max(row.get("high") or row["value"] for row in rows)
    for index, row in enumerate(rows):
        axes.barh(index, row["value"], height=0.6, color=COLOURS[index % len(COLOURS)], edgecolor="white",
                  hatch=HATCHES[index % len(HATCHES)])
        low, high = row.get("low"), row.get("high")
        if low is not None and high is not None:
            axes.errorbar(row["value"], index, xerr=[[row["value"] - low], [high - row["value"]]], color=INK, capsize=4)
        axes.text((high or row["value"]) + 0.015 * highest, index, f"{number(row['value'])} {unit}", va="center",
                  fontsize=9, color=INK)
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, highest * 1.22)
    axes.set_xlabel(unit, color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    return Chart(figure, _compared(rows, unit), Table.of(f"Values [{unit}]", [
        {key: row.get(key) for key in ("label", "value", "low", "high") if any(key in other for other in rows)}
        for row in rows]))


def _segments(axes: Axes, reports: Mapping[str, Mapping[str, float]], before: list[str], part: str, total: float,
              unit: str) -> None:
    """One part's segment in every bar, labelled inside where there is room."""
    style = (PARTS.index(part) if part in PARTS else len(before)) % len(COLOURS)
    left = [sum(report.get(earlier, 0.0) for earlier in before) for report in reports.values()]
    widths = [report.get(part, 0.0) for report in reports.values()]
    axes.barh(range(len(reports)), widths, left=left, height=0.62, color=COLOURS[style], hatch=HATCHES[style],
              edgecolor="white", linewidth=0.8, label=part.replace("_", " "))
    for row, (start, width) in enumerate(zip(left, widths, strict=True)):
        if width / total > 0.07:
            axes.text(start + width / 2, row, f"{number(float(f'{width:.3g}'))} {unit}", ha="center", va="center",
                      fontsize=8.5, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Names at the ends of the lines, moved apart where the lines end together."""
    low, high = axes.get_ylim()
    gap, place = (high - low) * 0.11, -math.inf
    for y, label, colour in sorted(ends):
        place = max(y, place + gap)
        frame = {"facecolor": "white", "edgecolor": colour, "pad": 2, "linewidth": 1.4}
        axes.annotate(label, (1.02, place), xycoords=("axes fraction", "data"), color=INK, fontsize=9, va="center",
                      annotation_clip=False, bbox=frame)


def _largest_parts(reports: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """'as_found spends most of its step on data wait (62 % of the step), ...' as one sentence."""
    found = []
    for label, report in reports.items():
        part = max(report, key=lambda key: report[key])
        share = 100 * report[part] / sum(report.values())
        length = "" if unit == "%" else f" of {number(sum(report.values()))} {unit}"
        found.append(f"{label} spends {share:.0f} %{length} on {part.replace('_', ' ')}")
    return f"Largest part of the step: {'; '.join(found)}."


def _compared(rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Every value, and its ratio to the first one's, as one sentence."""
    first = rows[0]
    found = [f"{first['label']} {number(first['value'])} {unit}"]
    for row in rows[1:]:
        ratio = f", {row['value'] / first['value']:.2f} times {first['label']}" if first["value"] else ""
        found.append(f"{row['label']} {number(row['value'])} {unit}{ratio}")
    return f"{'; '.join(found)}."
