"""The ladder as a picture: what each rung reaches, what was refused, and what the stack loses without each lever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, HATCHES, INK, blank
from lfhelpers.notebook.tables import Table, number

RATE = "samples/s"
ANCHORS = ("as found", "competent", "full")


def climb_bars(lines: Sequence[Mapping[str, Any]], head: str = RATE) -> Chart:
    """A figure of the rungs in order, from bench.ladder_table's lines; those left out of the stack stand below.

    Rungs that were not run, or were refused, have no bar but their reason. head: one of ladder_table's columns.
    """
    rungs = [line for line in lines if line[RATE] is not None or line["why not"]]
    figure, axes = blank(height=1.0 + 0.3 * len(rungs))
    top = max(line[head] or 0.0 for line in rungs) or 1.0
    for place, line in enumerate(rungs):
        _bar(axes, place, line, head, top)
    axes.set_yticks(range(len(rungs)), [line["rung"] for line in rungs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * top)
    axes.set_xlabel(head, color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    shown = [{head: value for head, value in line.items() if head not in ("low", "high")} for line in rungs]
    return Chart(figure, _finding(rungs), Table.of("The ladder, rung by rung", shown))


def _bar(axes: Any, place: int, line: Mapping[str, Any], head: str, top: float) -> None:
    rate, anchor, without = line[head], line["rung"] in ANCHORS, line["rung"].startswith("- ")
    if rate is None or (line["why not"] and not without):
        axes.text(0.01 * top, place, _short(line["why not"]), va="center", fontsize=8, color=INK, style="italic")
        return
    style = 1 if anchor else 2 if without else 0
    axes.barh(place, rate, height=0.66, color=COLOURS[style], hatch=HATCHES[style], edgecolor="white")
    ratio = line.get("x as found") if head == RATE else None
    axes.text(rate + 0.01 * top, place, number(rate) + (f", {ratio:.2f} x" if ratio is not None else ""), va="center",
              fontsize=8, color=INK)


def _finding(rungs: Sequence[Mapping[str, Any]]) -> str:
    """The whole stack against both baselines, and the lever without which it loses most."""
    top = next((line for line in rungs if line["rung"] == "full" and line["samples/s"]), None)
    if top is None:
        return f"The ladder has reached {rungs[-1]['rung']}{_reached(rungs[-1])}."
    ratios = [f"{top[head]:.2f} times {base}" for base in ("as found", "competent")
              if top.get(head := f"x {base}") is not None]
    without = [line for line in rungs if line["rung"].startswith("- ") and line["samples/s"]]
    lost = min(without, key=lambda line: line["samples/s"], default=None)
    found = f"The full stack reaches {number(top['samples/s'])} samples/s, {' and '.join(ratios)}."
    if lost is None:
        return found
    kept = 100 * lost["samples/s"] / top["samples/s"]
    return f"{found} Without {lost['rung'][2:]} it keeps {kept:.0f} % of its rate, the greatest loss."


def _reached(line: Mapping[str, Any]) -> str:
    """': 120 samples/s, 1.50 times as found'; what is not known is left out."""
    rate, ratio = line[RATE], line.get("x as found")
    if rate is None or line["why not"]:
        return ""
    return f": {number(rate)} samples/s" + (f", {ratio:.2f} times as found" if ratio is not None else "")


def _short(reason: str, most: int = 90) -> str:
    return reason if len(reason) <= most else f"{reason[:most - 1]}…"
