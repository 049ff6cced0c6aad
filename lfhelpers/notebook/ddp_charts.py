"""Charts of the lesson on communication: when buckets travel, what plans cost, what a link gives, what would scale.

Pure functions as those of `charts`: numbers in; figure, finding and table out. A slider over bucket sizes is a skin
over `bucket_timeline` of a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lfhelpers.levers.buckets_sim import MB, Outcome
from lfhelpers.levers.project import Projection
from lfhelpers.measure.link import Link, bus_gb_s
from lfhelpers.notebook.charts import Chart, _label_ends
from lfhelpers.notebook.figures import COLOURS, DASHES, HATCHES, INK, MARKERS, blank
from lfhelpers.notebook.tables import Table, number

LANES = ("computation", "gradients ready", "link")


def bucket_timeline(outcome: Outcome, before_ms: float = 0.0) -> Chart:
    """A simulated pass: computation above, in the middle when each bucket was ready, below when it travelled.

    What travels after computation has ended is exposed, and hatched. before_ms: where the picture begins, such as the
    beginning of backward; what ended before it is cut off.
    """
    figure, axes = blank(height=2.6)
    axes.broken_barh([(before_ms, outcome.compute_ms - before_ms)], (-0.32, 0.64), color=COLOURS[0])
    for sent in outcome.buckets:
        axes.plot([sent.ready_ms], [1], marker=MARKERS[1], color=COLOURS[2], markersize=5, linestyle="none")
        for start, end, style in _pieces(sent.start_ms, sent.end_ms, outcome.compute_ms):
            axes.broken_barh([(start, end - start)], (1.68, 0.64), facecolor=COLOURS[style], edgecolor="white",
                             linewidth=0.8, hatch=HATCHES[style])
    axes.axvline(outcome.compute_ms, color=INK, linewidth=0.9, linestyle=DASHES[1])
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set_ylim(2.6, -0.6)
    axes.set_xlim(before_ms, max(outcome.end_ms, outcome.compute_ms) * 1.01)
    axes.set_xlabel("time since the beginning of the step [ms]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    rows = [{"bucket": place, "MiB": sent.size / MB, "gradients": sent.gradients, "ready [ms]": sent.ready_ms,
             "starts [ms]": sent.start_ms, "ends [ms]": sent.end_ms,
             "exposed [ms]": max(0.0, sent.end_ms - max(sent.start_ms, outcome.compute_ms))}
            for place, sent in enumerate(outcome.buckets, 1)]
    return Chart(figure, _timeline_finding(outcome), Table.of("Buckets in the order of sending", rows))


def plan_bars(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """What the exchange adds to a step under each plan, predicted and, where it was run, measured (tuner.rows)."""
    figure, axes = blank(height=1.2 + 0.42 * len(rows))
    for side, (kind, offset) in enumerate((("predicted [ms]", -0.18), ("measured [ms]", 0.18))):
        shown = [(place + offset, row[kind]) for place, row in enumerate(rows) if row[kind] is not None]
        axes.barh([place for place, _ in shown], [value for _, value in shown], height=0.34, color=COLOURS[side],
                  hatch=HATCHES[side], edgecolor="white", label=kind.removesuffix(" [ms]"))
        for place, value in shown:
            axes.text(max(value, 0.0), place, f" {number(float(value))}", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(rows)), [f"{row['buckets']} ({row['count']})" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("what the exchange adds to a step [ms]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8.5)
    return Chart(figure, _plans_finding(rows), Table.of("Bucket plans: what the exchange adds to a step", list(rows)))


def link_curve(links: Mapping[str, Link]) -> Chart:
    """Bus bandwidth by message size, a line a link; a link that was slowed on purpose is named so in the legend."""
    figure, axes = blank()
    ends, rows = [], []
    for index, (label, link) in enumerate(links.items()):
        rates = [bus_gb_s(size, time, link.ranks) for size, time in zip(link.sizes, link.times_ms, strict=True)]
        name, colour = f"{label} (slowed: {link.slow})" if link.slow else label, COLOURS[index % len(COLOURS)]
        axes.plot([size / MB for size in link.sizes], rates, label=name, color=colour, marker=MARKERS[index],
                  linestyle=DASHES[index % len(DASHES)], linewidth=1.4, markersize=4)
        ends.append((rates[-1], name, colour))
        rows += [{"link": name, "MiB": size / MB, "ms": time, "GB/s": rate}
                 for size, time, rate in zip(link.sizes, link.times_ms, rates, strict=True)]
    axes.set_xscale("log", base=2)
    axes.set_xlabel("message [MiB]", color=INK, fontsize=9)
    axes.set_ylabel("bus bandwidth [GB/s]", color=INK, fontsize=9)
    axes.set_ylim(0)
    _label_ends(axes, ends)
    found = [f"{label}: {_half(link):.3g} MiB are enough for half of its {link.gb_s:.3g} GB/s"
             for label, link in links.items()]
    return Chart(figure, f"{'; '.join(found)}.", Table.of("All-reduce by message size", rows))


def projection_lines(projections: Mapping[str, Projection]) -> Chart:
    """Efficiency of weak scaling by number of GPUs, a line a plan; nothing in it was run, and its title says so.

    The assumptions stand in the table, below the figures of each plan.
    """
    figure, axes = blank()
    ends, rows = [], []
    for index, (label, projection) in enumerate(projections.items()):
        colour = COLOURS[index % len(COLOURS)]
        shares = [100 * row.efficiency for row in projection.rows]
        axes.plot([row.gpus for row in projection.rows], shares, label=label, color=colour, linewidth=1.4,
                  linestyle=DASHES[index % len(DASHES)], marker=MARKERS[index % len(MARKERS)], markersize=5)
        ends.append((shares[-1], label, colour))
        rows += [{"plan": label, "GPUs": row.gpus, "step [ms]": row.step_ms, "exchange [ms]": row.exposed_ms,
                  "waiting [ms]": row.waiting_ms, "efficiency [%]": 100 * row.efficiency,
                  "samples/s": row.samples_per_s} for row in projection.rows]
        if projection.check is not None:
            rows.append({"plan": f"{label}: projected over measured step, {projection.rows[0].gpus} GPUs",
                         "step [ms]": projection.check})
    counts = sorted({row.gpus for projection in projections.values() for row in projection.rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_ylim(0, 105)
    axes.set_xlabel("GPUs", color=INK, fontsize=9)
    axes.set_ylabel("efficiency [%]", color=INK, fontsize=9)
    _label_ends(axes, ends)
    assumed = list(dict.fromkeys(text for projection in projections.values() for text in projection.assumptions))
    rows += [{"plan": f"assumed: {text}"} for text in assumed]
    return Chart(figure, _projection_finding(projections), Table.of("Projected, not measured", rows))


def _pieces(start: float, end: float, computed: float) -> list[tuple[float, float, int]]:
    """A bucket's way as (start, end, style): hidden beside computation, and exposed after it."""
    hidden, exposed = (start, min(end, computed), 1), (max(start, computed), end, 5)
    return [piece for piece in (hidden, exposed) if piece[1] > piece[0]]


def _timeline_finding(outcome: Outcome) -> str:
    moved = sum(sent.end_ms - sent.start_ms for sent in outcome.buckets)
    hidden = 100 * outcome.hidden_ms / moved if moved else 100.0
    return (f"{len(outcome.buckets)} buckets travel for {number(float(moved))} ms, {hidden:.0f} % of it beside "
            f"computation; {number(float(outcome.exposed_ms))} ms are exposed.")


def _plans_finding(rows: Sequence[Mapping[str, Any]]) -> str:
    ran = [row for row in rows if row["measured [ms]"] is not None]
    best = min(ran or rows, key=lambda row: row["measured [ms]"] if ran else row["predicted [ms]"])
    kind = "measured" if ran else "predicted"
    text = f"The least is {kind} for {best['buckets']}: {number(float(best[f'{kind} [ms]']))} ms a step"
    return f"{text}, where {number(float(best['predicted [ms]']))} ms were predicted." if ran else f"{text}."


def _half(link: Link) -> float:
    """The smallest measured message, in MiB, that reaches half of the largest one's bandwidth."""
    rates = [bus_gb_s(size, time, link.ranks) for size, time in zip(link.sizes, link.times_ms, strict=True)]
    return next((size for size, rate in zip(link.sizes, rates, strict=True) if rate >= rates[-1] / 2), math.nan) / MB


def _projection_finding(projections: Mapping[str, Projection]) -> str:
    found = [f"{label} from {100 * projection.rows[0].efficiency:.0f} % on {projection.rows[0].gpus} GPUs to "
             f"{100 * projection.rows[-1].efficiency:.0f} % on {projection.rows[-1].gpus:,}"
             for label, projection in projections.items()]
    return f"Projected efficiency, not measured: {'; '.join(found)}."
