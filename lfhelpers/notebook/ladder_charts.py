"""The ladder as a picture: what each rung reaches, what was refused, and what the stack loses without each lever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, HATCHES, INK, blank
from lfhelpers.notebook.tables import Table, number

ANCHORS = ("as found", "competent", "full")


def climb_bars(lines: Sequence[Mapping[str, Any]]) -> Chart:
    """Samples/s of the rungs in order, from bench.ladder_table's lines; those left out of the stack stand below.

    Rungs that were not run, or were refused, have no bar but their reason.
    """
    rungs = [line for line in lines if line["samples/s"] is not None or line["why not"]]
    figure, axes = blank(height=1.0 + 0.3 * len(rungs))
    top = max(line["samples/s"] or 0.0 for line in rungs)
    for place, line in enumerate(rungs):
        _bar(axes, place, line, top)
    axes.set_yticks(range(len(rungs)), [line["rung"] for line in rungs])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * top)
    axes.set_xlabel("samples/s", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    shown = [{head: value for head, value in line.items() if head not in ("low", "high")} for line in rungs]
    return Chart(figure, _finding(rungs), Table.of("The ladder, rung by rung", shown))


def _bar(axes: Any, place: int, line: Mapping[str, Any], top: float) -> None:
    rate, anchor, without = line["samples/s"], line["rung"] in ANCHORS, line["rung"].startswith("- ")
    if rate is None or (line["why not"] and not without):
        axes.text(0.01 * top, place, _short(line["why not"]), va="center", fontsize=8, color=INK, style="italic")
        return
    style = 1 if anchor else 2 if without else 0
    axes.barh(place, rate, height=0.66, color=COLOURS[style], hatch=HATCHES[style], edgecolor="white")
    ratio = line.get("x as found")
    axes.text(rate + 0.01 * top, place, number(rate) + (f", {ratio:.2f} x" if ratio is not None else ""), va="center",
              fontsize=8, color=INK)


def _finding(rungs: Sequence[Mapping[str, Any]]) -> str:
    """The whole stack against both baselines, and the lever without which it loses most."""
    top = next((line for line in rungs if line["rung"] == "full" and line["samples/s"]), None)
    if top is None:
        return f"The ladder has reached {rungs[-1]['rung']}."
    ratios = [f"{top[head]:.2f} times {base}" for base in ("as found", "competent")
              if top.get(head := f"x {base}") is not None]
    without = [line for line in rungs if line["rung"].startswith("- ") and line["samples/s"]]
    lost = min(without, key=lambda line: line["samples/s"], default=None)
    found = f"The full stack reaches {number(top['samples/s'])} samples/s, {' and '.join(ratios)}."
    if lost is None:
        return found
    kept = 100 * lost["samples/s"] / top["samples/s"]
    return f"{found} Without {lost['rung'][2:]} it keeps {kept:.0f} % of its rate, the greatest loss."


def _short(reason: str, most: int = 90) -> str:
    return reason if len(reason) <= most else f"{reason[:most - 1]}…"
