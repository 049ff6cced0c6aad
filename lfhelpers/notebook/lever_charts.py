"""Charts of the lesson on compilation and precision: the ladder, its kernels, a sweep, and ranges of numbers.

Pure functions as those of `charts`: numbers in; figure, finding and table out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lfhelpers.notebook.charts import Chart, _label_ends
from lfhelpers.notebook.figures import COLOURS, DASHES, HATCHES, INK, MARKERS, blank
from lfhelpers.notebook.tables import Table, number

GROUPS = ("matrix products", "attention", "compiled pointwise and reductions", "pointwise, uncompiled",
          "copies and casts", "optimizer", "gradient norm", "other")
"""The groups of measure.kernels from useful arithmetic to mere traffic; they keep colour and hatch in every chart."""


def ladder_bars(rows: Sequence[Mapping[str, Any]], against: Mapping[str, str]) -> Chart:
    """A bar a rung, {"label", "value" [ms], "low", "high"}; `against`: {name: label of the rung it stands for}.

    Dashed lines mark the rungs that the others are compared with; the finding gives the last rung beside each.
    """
    times = {row["label"]: row["value"] for row in rows}
    figure, axes = blank(height=1.0 + 0.36 * len(rows))
    for place, row in enumerate(rows):
        axes.barh(place, row["value"], height=0.64, color=COLOURS[1 if row["label"] in against.values() else 0],
                  hatch=HATCHES[1 if row["label"] in against.values() else 0], edgecolor="white")
        axes.errorbar(row["value"], place, xerr=[[row["value"] - row["low"]], [row["high"] - row["value"]]],
                      color=INK, capsize=3, linewidth=1)
        axes.text(max(row["high"], row["value"]) + 0.012 * max(times.values()), place, f"{number(row['value'])} ms",
                  va="center", fontsize=8.5, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})
    longest = max(against.values(), key=times.__getitem__)
    for index, (name, label) in enumerate(against.items()):
        axes.axvline(times[label], color=INK, linewidth=0.9, linestyle=DASHES[1 + index], zorder=0)
        axes.annotate(name, (times[label], 1.0), xycoords=("data", "axes fraction"), va="bottom", fontsize=8.5,
                      color=INK, ha="left" if label == longest else "right")  # apart, however near the lines are
    axes.set_yticks(range(len(rows)), list(times))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.16 * max(row["high"] for row in rows))
    axes.set_xlabel("time of a step [ms]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    shown = [{"rung": row["label"], "ms": row["value"], "low": row["low"], "high": row["high"]}
             | {f"median of {name} over it": times[label] / row["value"] for name, label in against.items()}
             for row in rows]
    return Chart(figure, _last_against(times, against), Table.of("Time of a step, lever by lever", shown))


def kernel_bars(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Chart:
    """A stacked bar a rung: {rung: measure.kernels' {"name", "kernels", "ms"}}; ms of kernels, not of the step."""
    spent = {rung: {group["name"]: group["ms"] for group in groups} for rung, groups in tables.items()}
    names = [*GROUPS, *dict.fromkeys(name for groups in spent.values() for name in groups if name not in GROUPS)]
    names = [name for name in names if any(groups.get(name) for groups in spent.values())]
    figure, axes = blank(height=1.4 + 0.42 * len(spent))
    left = [0.0] * len(spent)
    for name in names:
        style = GROUPS.index(name) if name in GROUPS else len(GROUPS)
        widths = [groups.get(name, 0.0) for groups in spent.values()]
        axes.barh(range(len(spent)), widths, left=left, height=0.66, label=name, edgecolor="white", linewidth=0.8,
                  color=COLOURS[style % len(COLOURS)], hatch=HATCHES[(style + style // len(COLOURS)) % len(HATCHES)])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.text(total + 0.01 * max(left), place, f"{number(total)} ms", va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(spent)), list(spent))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(left))
    axes.set_xlabel("time of all kernels of a step [ms]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8, handlelength=1.6)
    rows = [{"group": name} | {rung: groups.get(name, 0.0) for rung, groups in spent.items()} for name in names]
    return Chart(figure, _kernels_of_ends(tables, left), Table.of("Milliseconds of kernels by group", rows))


def sweep_lines(lines: Mapping[str, Mapping[int, float]], x_label: str, unit: str) -> Chart:
    """A line a label over a quantity that doubles, {label: {x: value}}; where they are flat, x doesn't matter."""
    figure, axes = blank()
    ends: list[tuple[float, str, str]] = []
    for index, (label, points) in enumerate(lines.items()):
        colour, xs = COLOURS[index % len(COLOURS)], sorted(points)
        axes.plot(xs, [points[x] for x in xs], label=label, color=colour, linestyle=DASHES[index % len(DASHES)],
                  marker=MARKERS[index % len(MARKERS)], linewidth=1.4, markersize=5)
        ends.append((points[xs[-1]], label, colour))
    ticks = sorted({x for points in lines.values() for x in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(0)
    axes.set_xlabel(x_label, color=INK, fontsize=9)
    axes.set_ylabel(unit, color=INK, fontsize=9)
    _label_ends(axes, ends)
    rises = [f"{label} from {number(points[min(points)])} to {number(points[max(points)])} {unit}"
             for label, points in lines.items()]
    rows = [{x_label: x} | {label: points.get(x) for label, points in lines.items()} for x in ticks]
    return Chart(figure, f"From the smallest to the largest {x_label}: {'; '.join(rises)}.",
                 Table.of(f"Values [{unit}]", rows))


def magnitudes(values: NDArray[Any], formats: Sequence[Mapping[str, Any]]) -> Chart:
    """How large the non-zero `values` are, by powers of two, under the range of each format {"label", "least", "most"}.

    Below half of `least` a number becomes zero, above `most` infinite. The first bar holds all that is smaller too.
    """
    sizes = np.abs(np.asarray(values, dtype=np.float64).ravel())
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)]
    exponents = np.floor(np.log2(sizes)).astype(int)
    low, high = -46, max(20, int(exponents.max())) + 2
    shares = 100 * np.bincount(np.maximum(exponents, low) - low, minlength=high - low) / len(exponents)
    figure, axes = blank(height=2.6 + 0.32 * len(formats))
    axes.bar(np.arange(low, high), shares, width=0.9, color=COLOURS[0], align="edge")
    top = shares.max()
    for index, form in enumerate(formats):
        height, begin, end = top * (1.14 + 0.16 * index), math.log2(form["least"]), math.log2(form["most"])
        axes.plot([max(begin, low), min(end, high)], [height, height], color=COLOURS[(1 + index) % len(COLOURS)],
                  linewidth=3, solid_capstyle="butt")
        axes.text(max(begin, low) + 0.5, height + 0.025 * top, form["label"], fontsize=8.5, color=INK, va="bottom")
    axes.set_xlim(low, high)
    axes.set_ylim(0, top * (1.22 + 0.16 * len(formats)))
    axes.set_xlabel("magnitude, as a power of two", color=INK, fontsize=9)
    axes.set_ylabel("share of values [%]", color=INK, fontsize=9)
    rows = [{"format": form["label"], "smallest": form["least"], "largest": form["most"],
             "become zero [%]": 100 * float((sizes < form["least"] / 2).mean()),
             "become infinite [%]": 100 * float((sizes > form["most"]).mean())} for form in formats]
    found = [f"{row['format']} turns {row['become zero [%]']:.1f} % of the values into zero" for row in rows]
    return Chart(figure, f"{'; '.join(found)}.", Table.of("What a format can't hold", rows))


def _last_against(times: Mapping[str, float], against: Mapping[str, str]) -> str:
    """The last rung's median beside those it is compared with, and the lever that won most, as one sentence.

    No ratio to those: as_found drifts with its host, so that pairs say how many times as fast the last rung is.
    """
    labels = list(times)
    gains = {after: times[before] / times[after] for before, after in itertools.pairwise(labels)}
    best = max(gains, key=lambda label: gains[label])
    others = " and ".join(f"{number(times[label])} ms of {name}" for name, label in against.items())
    return (f"With all levers a step takes {number(times[labels[-1]])} ms, beside {others}; "
            f"{best} wins most, {gains[best]:.2f} times.")


def _kernels_of_ends(tables: Mapping[str, Sequence[Mapping[str, Any]]], totals: Sequence[float]) -> str:
    counts = {rung: sum(group["kernels"] for group in groups) for rung, groups in tables.items()}
    found = [f"{rung} runs {count:,} kernels for {number(total)} ms"
             for (rung, count), total in zip(counts.items(), totals, strict=True)]
    return f"{'; '.join(dict.fromkeys((found[0], found[-1])))}."
