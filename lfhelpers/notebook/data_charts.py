"""The charts of the data pipeline, pure functions as in `charts`: engines, shard sizes, predictions, starvation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import MaxNLocator

from lfhelpers.measure.record import Record, Row
from lfhelpers.notebook.charts import Chart, bars_with_interval
from lfhelpers.notebook.figures import COLOURS, DASHES, HATCHES, INK, MARKERS, blank
from lfhelpers.notebook.tables import Table, number

ENGINE = re.compile(r"(?P<what>plain|as_found|webdataset|threads exact|threads scaled|dali cpu|dali mixed [\d.]+) "
                    r"x(?P<workers>\d+)")
"""Rows of `bench data` that are an engine at work with nothing but decoding to do."""
SWEEP = re.compile(r"sweep_(?P<size>\d+)_(?P<order>\w+)")
WORKS, WAITS = COLOURS[4], COLOURS[5]


def engines(record: Record) -> list[Row]:
    """Each engine's images/s with the most workers that the record has of it, in the record's order.

    What failed is left out here; the record's settings["failed"] says why.
    """
    best: dict[str, tuple[int, Row]] = {}
    for row in record.rows:
        found = ENGINE.fullmatch(row.name)
        if found and row.n and row.unit == "images/s" and int(found["workers"]) > best.get(found["what"], (0, row))[0]:
            best[found["what"]] = int(found["workers"]), row
    return [row for _, row in best.values()]


def origin(record: Record) -> str:
    """Where and when a record was made: `NVIDIA H200, 16 cores, torch 2.11.0, 2026-11-29`."""
    gpus, facts = record.hardware["gpus"], record.hardware
    machine = f"{gpus[0]['name']}, {facts['cores_usable']} cores" if gpus else \
        f"{facts['cpu']}, {facts['cores_usable']} cores, no GPU"
    return f"{machine}, torch {record.versions['torch']}, {record.date[:10]}"


def bars(rows: Sequence[Row], labels: Mapping[str, str] | None = None) -> Chart:
    """bars_with_interval of a record's rows; the first is what others are compared with. labels: {name: label}."""
    return bars_with_interval([{"label": (labels or {}).get(row.name, row.name), "value": row.value, "low": row.low,
                                "high": row.high, "unit": row.unit} for row in rows])


def shard_sizes(record: Record) -> Chart | None:
    """MB/s over the shards' size, a line an order of reading, small files as a level; None without a sweep."""
    swept = [(int(found["size"]), found["order"], row) for row in record.rows
             if row.unit == "MB/s" and row.n and (found := SWEEP.fullmatch(row.name))]
    if not swept:
        return None
    figure, axes = blank()
    orders = list(dict.fromkeys(order for _, order, _ in swept))
    for index, order in enumerate(orders):
        points = sorted((size, row) for size, each, row in swept if each == order)
        sizes, rows = [size for size, _ in points], [row for _, row in points]
        axes.errorbar(sizes, [row.value for row in rows], color=COLOURS[index], linestyle=DASHES[index],
                      marker=MARKERS[index], markersize=5, capsize=3, label=f"{order} shuffle",
                      yerr=[[row.value - row.low for row in rows], [row.high - row.value for row in rows]])
    small = next((row for row in record.rows if row.name == "sweep_small_files" and row.unit == "MB/s" and row.n), None)
    if small:
        axes.axhline(small.value, color=COLOURS[5], linestyle=":", label="small files, shuffled")
    axes.set_xscale("log")
    ticks = sorted({size for size, _, _ in swept})
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks])
    axes.minorticks_off()
    axes.set_ylim(0)
    _named(axes, "size of a shard [MB]", "read cold [MB/s]")
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8.5)
    return Chart(figure, _sizes_compared(swept, orders, small), _sizes_table(swept, orders, small))


def by_workers(lines: Mapping[str, Sequence[tuple[int, float]]], ceiling: float,
               points: Mapping[str, tuple[int, float]] | None = None) -> Chart:
    """Predicted images/s over workers, a line a label, under the step's own rate; points: {label: (workers, rate)}."""
    figure, axes = blank()
    for index, (label, line) in enumerate(lines.items()):
        axes.plot(*zip(*line, strict=True), color=COLOURS[index % len(COLOURS)], label=label, linewidth=1.4,
                  linestyle=DASHES[index % len(DASHES)], marker=MARKERS[index % len(MARKERS)], markersize=4)
    axes.axhline(ceiling, color=INK, linewidth=1, linestyle=":", label="the step alone")
    for label, (workers, rate) in (points or {}).items():
        axes.plot([workers], [rate], linestyle="", marker="*", markersize=14, color=COLOURS[5], markeredgecolor=INK)
        axes.annotate(label, (workers, rate), xytext=(0, -16), textcoords="offset points", ha="center", fontsize=8.5,
                      color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    axes.set_ylim(0, 1.12 * max([ceiling, *(rate for _, rate in (points or {}).values())]))
    axes.set_xticks(sorted({workers for line in lines.values() for workers, _ in line}))
    _named(axes, "workers", "images/s")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8.5)
    counts = sorted({workers for line in lines.values() for workers, _ in line})
    rows = [{"workers": workers} | {label: dict(line).get(workers) for label, line in lines.items()}
            for workers in counts]
    ends = "; ".join(f"{label} {number(float(line[-1][1]))}" for label, line in lines.items())
    marked = "".join(f"; {label} at {workers} workers: {number(float(rate))}"
                     for label, (workers, rate) in (points or {}).items())
    return Chart(figure, f"Images/s with {counts[-1]} workers: {ends}; the step alone allows {number(float(ceiling))}"
                         f"{marked}.", Table.of("Predicted images/s", rows))


def starvation(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> Chart:
    """When the trainer worked and when it waited, a strip a run, over the batches that lay in its queues.

    runs: {label: Meter.series()}. The first batch's wait is the pipeline's start, and not shown.
    """
    figure, strips, depths = _two_panels(1.9 + 0.5 * len(runs), [0.45 * len(runs), 1.3])
    rows = []
    for index, (label, series) in enumerate(runs.items()):
        at, waits = series["at"], [wait / 1e3 for wait in series["wait_ms"]]
        strips.broken_barh([(0.0, at[-1])], (index - 0.32, 0.64), facecolor=WORKS, label="" if index else "works")
        strips.broken_barh([(end - wait, wait) for end, wait in list(zip(at, waits, strict=True))[1:]],
                           (index - 0.32, 0.64), facecolor=WAITS, edgecolor="white", hatch=HATCHES[1], linewidth=0,
                           label="" if index else "waits for data")
        ahead = [sum(each) for each in zip(*(series[name] for name in series if name not in ("at", "wait_ms")),
                                               strict=True)]
        depths.step(at, ahead, where="post", color=COLOURS[index % len(COLOURS)], linewidth=1.4, label=label,
                    linestyle=DASHES[index % len(DASHES)])
        rows.append({"run": label, "batches": len(at), "starved [%]": 100 * sum(waits[1:]) / at[-1],
                     "mean wait [ms]": sum(series["wait_ms"][1:]) / (len(at) - 1),
                     "batches ahead, mean": sum(ahead[1:]) / (len(at) - 1)})
    strips.set_yticks(range(len(runs)), list(runs))
    strips.invert_yaxis()
    strips.grid(visible=False)
    depths.set_ylim(0)
    depths.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    _named(depths, "time since the first batch [s]", "batches ahead")
    depths.legend(loc="center right", frameon=False, fontsize=8.5, ncols=len(runs))
    figure.legend(*strips.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False, fontsize=8.5)
    found = "; ".join(f"{row['run']} {row['starved [%]']:.0f} %" for row in rows)
    return Chart(figure, f"Share of the trainer's time spent waiting for data: {found}.",
                 Table.of("Starvation", rows))


def _two_panels(height: float, ratios: list[float]) -> tuple[Figure, Axes, Axes]:
    """A figure with two plots above each other that share their x axis."""
    figure, upper = blank(height=height)
    grid = GridSpec(2, 1, figure, height_ratios=ratios)
    upper.set_subplotspec(grid[0])
    lower = figure.add_subplot(grid[1], sharex=upper)
    lower.spines[["top", "right"]].set_visible(False)
    lower.tick_params(colors=INK, labelsize=9)
    lower.grid(alpha=0.25, linewidth=0.6)
    upper.tick_params(labelbottom=False)
    return figure, upper, lower


def _named(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK, fontsize=9)
    axes.set_ylabel(y, color=INK, fontsize=9)


def _sizes_compared(swept: Sequence[tuple[int, str, Row]], orders: Sequence[str], small: Row | None) -> str:
    """From the smallest to the largest shard, order by order, and against small files."""
    found = []
    for order in orders:
        points = sorted((size, row.value) for size, each, row in swept if each == order)
        (first, low), (last, high) = points[0], points[-1]
        found.append(f"{order} shuffle from {number(low)} MB/s with shards of {first:,} MB to {number(high)} MB/s with "
                     f"{last:,} MB")
    return f"Read cold: {'; '.join(found)}{f'; small files {number(small.value)} MB/s' if small else ''}."


def _sizes_table(swept: Sequence[tuple[int, str, Row]], orders: Sequence[str], small: Row | None) -> Table:
    value = {(size, order): row.value for size, order, row in swept}
    rows: list[dict[str, Any]] = [{"shards of": f"{size:,} MB"} | {order: value.get((size, order)) for order in orders}
                                  for size in sorted({size for size, _, _ in swept})]
    if small:
        rows.append({"shards of": "no shards: small files", "global": small.value})
    return Table.of("Read cold, MB/s by order of reading", rows)
