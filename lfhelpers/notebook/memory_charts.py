"""Charts of the lesson on memory: where it goes, what each plan of recomputation frees and costs, and the knee.

Pure functions as those of `charts`: numbers in; figure, finding and table out. A slider over a limit on memory is a
skin over `plans_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lfhelpers.levers import activations_choice as choice
from lfhelpers.levers.activations_choice import Point
from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, DASHES, HATCHES, INK, MARKERS, blank
from lfhelpers.notebook.tables import Table, number

FAMILIES = {"none": "without a plan", "rule": "rule of thumb", "blocks": "whole blocks, by bargain",
            "ops": "products and attention kept", "budget": "compiler's budget"}
"""Families of plans, in the order of their colours and markers."""
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def scale(largest: float) -> tuple[int, str]:
    """The unit in which `largest` bytes read well: (its bytes, its name)."""
    return next(((size, name) for size, name in UNITS if largest >= size), UNITS[-1])


def memory_bars(parts: Mapping[str, Mapping[str, float]]) -> Chart:
    """Where memory goes, a stacked bar a label: {label: {part: bytes}}; parts of nothing are left out."""
    totals = {label: sum(values.values()) for label, values in parts.items()}
    size, unit = scale(max(totals.values()))
    names = [name for name in dict.fromkeys(name for values in parts.values() for name in values)
             if any(values.get(name) for values in parts.values())]
    figure, axes = blank(height=1.5 + 0.55 * len(parts))
    left = [0.0] * len(parts)
    for index, name in enumerate(names):
        widths = [values.get(name, 0.0) / size for values in parts.values()]
        axes.barh(range(len(parts)), widths, left=left, height=0.62, label=name, edgecolor="white", linewidth=0.8,
                  color=COLOURS[index % len(COLOURS)],
                  hatch=HATCHES[(index + index // len(COLOURS)) % len(HATCHES)])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(parts)), list(parts))
    axes.invert_yaxis()
    axes.set_xlabel(f"memory [{unit}]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8.5, handlelength=1.6)
    found = []
    for label, values in parts.items():
        largest = max(values, key=lambda name: values[name])
        share = 100 * values[largest] / totals[label]
        found.append(f"{label} takes {number(totals[label] / size)} {unit}, {share:.0f} % of it {largest}")
    rows = [{"part": name} | {label: values.get(name, 0.0) / size for label, values in parts.items()} for name in names]
    return Chart(figure, f"{'; '.join(found)}.", Table.of(f"Where memory goes [{unit}]", rows))


def plans_picture(points: Sequence[Point], limit: float | None = None) -> Chart:
    """Saved bytes over step time, a point a plan, and the front that no plan beats.

    limit: peak bytes that may be used; the fastest plan within it is ringed, and the finding names it.
    """
    fitting = [point for point in points if point.fits]
    size, unit = scale(max(point.saved for point in fitting))
    figure, axes = blank(height=3.6)
    for index, (family, label) in enumerate(FAMILIES.items()):
        group = [point for point in fitting if point.family == family]
        if group:
            axes.errorbar([100 * (point.ratio - 1) for point in group], [point.saved / size for point in group],
                          xerr=[[100 * max(0.0, point.ratio - point.low) for point in group],
                                [100 * max(0.0, point.high - point.ratio) for point in group]],
                          fmt=MARKERS[index], color=COLOURS[index], label=label, markersize=6, elinewidth=0.8)
    front = choice.pareto(points)
    axes.plot([100 * (point.ratio - 1) for point in front], [point.saved / size for point in front],
              color=INK, linewidth=1, linestyle=DASHES[1], zorder=0)
    chosen = choice.choose(points, limit)
    axes.scatter([100 * (chosen.ratio - 1)], [chosen.saved / size], s=170, facecolors="none", edgecolors=INK, zorder=3)
    axes.set_ylim(0)
    axes.set_xlabel("more time for a step [%]", color=INK, fontsize=9)
    axes.set_ylabel(f"saved activations [{unit}]", color=INK, fontsize=9)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8.5)
    return Chart(figure, _chosen(chosen, points, limit), _plans_table(points, front, size, unit))


def throughput(picture: Mapping[str, Any]) -> Chart:
    """Samples/s over the micro-batch: measured points, the fit, and its knee, as measure.pace.picture gives them."""
    figure, axes = blank()
    axes.plot(*zip(*picture["fitted"], strict=True), color=COLOURS[0], linewidth=1.4, label="fit")
    axes.plot(*zip(*picture["measured"], strict=True), color=COLOURS[1], marker=MARKERS[1], linestyle="none",
              label="measured")
    if picture["knee"]:
        axes.axvline(picture["knee"], color=INK, linewidth=0.9, linestyle=DASHES[1])
        axes.annotate("knee", (picture["knee"], 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom",
                      fontsize=8.5, color=INK)
    axes.set_xscale("log", base=2)
    ticks = [micro for micro, _ in picture["measured"]]
    axes.set_xticks(ticks, [f"{micro:g}" for micro in ticks])
    axes.set_ylim(0)
    axes.set_xlabel("micro-batch", color=INK, fontsize=9)
    axes.set_ylabel("samples/s", color=INK, fontsize=9)
    axes.legend(frameon=False, fontsize=8.5)
    rows = [{"micro-batch": micro, "samples/s": rate} for micro, rate in picture["measured"]]
    text = picture["sentence"]
    return Chart(figure, f"{text[0].upper()}{text[1:]}.", Table.of("Throughput over the micro-batch", rows))


def _chosen(chosen: Point, points: Sequence[Point], limit: float | None) -> str:
    plain = next(point for point in points if point.family == "none")
    size, unit = scale(limit or chosen.peak)
    within = f"Within {number((limit or 0) / size)} {unit}" if limit else "Without a limit"
    less = 100 * (1 - chosen.saved / plain.saved) if plain.saved else 0.0
    return (f"{within} the fastest plan is '{chosen.name}': {less:.0f} % fewer saved activations for "
            f"{100 * (chosen.ratio - 1):+.0f} % of step time.")


def _plans_table(points: Sequence[Point], front: Sequence[Point], size: int, unit: str) -> Table:
    rows = []
    for point in sorted(points, key=lambda each: (not each.fits, each.ratio if each.fits else 0.0)):
        figures = {"more time [%]": 100 * (point.ratio - 1), f"saved [{unit}]": point.saved / size,
                   f"peak [{unit}]": point.peak / size, f"predicted [{unit}]": point.predicted / size} if point.fits \
            else {}
        rows.append({"plan": point.name, "kind": FAMILIES[point.family]} | figures
                    | {"on the front": "yes" if point in front else "", "trouble": point.trouble})
    return Table.of("Plans, the fastest first", rows)
