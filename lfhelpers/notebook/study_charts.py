"""A study as pictures: what each trial reached, which knobs mattered, speed against memory, and how two knobs interact.

Pure functions over tune.report's lines as those of `charts`: numbers in; figure, finding and table out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, HATCHES, INK, MARKERS, blank
from lfhelpers.notebook.tables import Table, number

Line = Mapping[str, Any]
GOOD, OVER = "done", "over its limits"


def history(lines: Sequence[Line]) -> Chart:
    """samples/s of each trial in order, those over a limit or without a figure marked, and the incumbent as steps."""
    figure, axes = blank(height=3.4)
    rated = [line for line in lines if line["samples/s"]]
    for index, (ended, shown) in enumerate(((GOOD, "keeps to the limits"), (OVER, "over a limit"))):
        points = [(line["trial"], line["samples/s"]) for line in rated if line["ended"] == ended]
        if points:
            axes.plot(*zip(*points, strict=True), linestyle="", marker=MARKERS[index], color=COLOURS[index],
                      label=shown)
    lost = [line["trial"] for line in lines if not line["samples/s"]]
    if lost:
        axes.plot(lost, [0] * len(lost), linestyle="", marker=MARKERS[6], color=COLOURS[5], label="stopped or failed",
                  clip_on=False)
    best = [line for line in lines if line["took over"]]
    axes.step([*(line["trial"] for line in best), lines[-1]["trial"]],
              [*(line["samples/s"] for line in best), best[-1]["samples/s"]], where="post", color=INK, linewidth=1,
              linestyle="--", label="incumbent")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("trial", color=INK, fontsize=9)
    axes.set_ylabel("samples/s", color=INK, fontsize=9)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8.5)
    return Chart(figure, _story(lines, best), Table.of("The study, trial by trial", _shown(lines)))


def importance(shares: Mapping[str, float]) -> Chart:
    """Which knobs set good trials apart: {knob: share of 1}, the most important one first."""
    figure, axes = blank(height=0.9 + 0.36 * max(1, len(shares)))
    for place, share in enumerate(shares.values()):
        axes.barh(place, 100 * share, height=0.62, color=COLOURS[0], edgecolor="white")
        axes.text(100 * share + 1, place, f"{100 * share:.0f} %", va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(shares)), list(shares))
    axes.invert_yaxis()
    axes.set_xlim(0, 112)
    axes.set_xlabel("share of what sets good trials apart [%]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    first = next(iter(shares.items()), None)
    finding = f"{first[0]} sets good trials apart most, with {100 * first[1]:.0f} % of all importance." if first else \
        "Too few trials have a figure for any knob's importance to be told."
    return Chart(figure, finding, Table.of("Importance of the knobs", [
        {"knob": name, "share [%]": 100 * share} for name, share in shares.items()] or [{"knob": "none"}]))


def pareto(lines: Sequence[Line]) -> Chart:
    """Speed against peak memory; a line through the trials that no other one beats in both.

    Trials over their limits, and those whose memory is not known, are left out.
    """
    known = [line for line in lines if line["ended"] == GOOD and line.get("peak GiB") is not None]
    front = [line for line in known if not any(_beats(other, line) for other in known)]
    front.sort(key=lambda line: line["peak GiB"])
    figure, axes = blank()
    axes.plot([line["peak GiB"] for line in known], [line["samples/s"] for line in known], linestyle="",
              marker=MARKERS[0], color=COLOURS[0])
    axes.step([line["peak GiB"] for line in front], [line["samples/s"] for line in front], where="post", color=INK,
              linestyle="--", linewidth=1)
    for line in front:
        axes.annotate(f"{line['trial']}", (line["peak GiB"], line["samples/s"]), textcoords="offset points",
                      xytext=(5, 5), fontsize=8.5, color=INK)
    axes.set_xlabel("peak memory [GiB]", color=INK, fontsize=9)
    axes.set_ylabel("samples/s", color=INK, fontsize=9)
    finding = (f"{len(front)} of {len(known)} trials are beaten by no other in speed and memory at once, from "
               f"{number(front[0]['samples/s'])} samples/s at {number(front[0]['peak GiB'])} GiB to "
               f"{number(front[-1]['samples/s'])} at {number(front[-1]['peak GiB'])}.") if front else \
        "No trial's memory is known, which is so on a CPU."
    return Chart(figure, finding, Table.of("Trials that no other beats in both", _shown(front) or [{"trial": "none"}]))


def two_knobs(lines: Sequence[Line], across: str, down: str) -> Chart:
    """The best rate of each pair of positions of two knobs: whether the one pays depends on the other.

    A pair of which no trial came to its end has the rate until it was stopped, or says what became of it.
    """
    best = _best(lines, across, down)
    rows, columns = (list(dict.fromkeys(pair[side] for pair in best)) for side in (0, 1))
    figure, axes = blank(height=1.4 + 0.42 * len(rows) * max(1, len(columns)))
    for index, column in enumerate(columns):
        found = [best.get((row, column), (0, 0.0, "not tried")) for row in rows]
        places = [place + (index - (len(columns) - 1) / 2) * 0.8 / len(columns) for place in range(len(rows))]
        axes.barh(places, [rate for _, rate, _ in found], height=0.75 / len(columns),
                  color=COLOURS[index % len(COLOURS)], edgecolor="white", hatch=HATCHES[index % len(HATCHES)],
                  label=f"{across}: {column}")
        for place, (_, rate, note) in zip(places, found, strict=True):
            axes.text(rate, place, " " + ", ".join(filter(None, (number(rate) if rate else "", note))), va="center",
                      fontsize=8.5, color=INK)
    axes.set_yticks(range(len(rows)), [f"{down}: {row}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max((rate for _, rate, _ in best.values()), default=0.0) or 1.0)
    axes.set_xlabel("samples/s, the best trial of each pair", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8.5)
    rates = {pair: rate for pair, (_, rate, _) in best.items() if rate}
    return Chart(figure, _interaction(rates, rows, columns, across, down), Table.of(
        f"Best samples/s by {down} and {across}",
        [{down: row} | {column: rates.get((row, column)) for column in columns} for row in rows]))


def _best(lines: Sequence[Line], across: str, down: str) -> dict[tuple[str, str], tuple[int, float, str]]:
    """(rank, samples/s or 0, note) of each pair that was tried: done before stopped, stopped before no figure."""
    best: dict[tuple[str, str], tuple[int, float, str]] = {}
    for line in lines:
        pair = line["positions"][down], line["positions"][across]
        if line["ended"] == GOOD:
            found = 2, line["samples/s"], ""
        elif line.get("until stopped"):
            found = 1, line["until stopped"], "stopped early"
        else:
            found = 0, 0.0, line["ended"]
        best[pair] = max(best.get(pair, found), found)
    return best


def _interaction(best: Mapping[tuple[str, str], float], rows: list[str], columns: list[str], across: str,
                 down: str) -> str:
    """What going from the first to the second position across wins, in each row that has both."""
    if len(columns) < 2:
        return f"The study has tried {across} in one position alone, so nothing is known of how it acts with {down}."
    wins = [f"{best[row, columns[1]] / best[row, columns[0]]:.2f} with {down} {row}" for row in rows
            if (row, columns[0]) in best and (row, columns[1]) in best]
    return (f"{across} {columns[1]} is, against {columns[0]}, faster by a factor of {', '.join(wins)}." if wins else
            f"No position of {down} has been tried with both {columns[0]} and {columns[1]} of {across}.")


def _beats(one: Line, other: Line) -> bool:
    """At least as good in both, and better in one."""
    return (one["samples/s"] >= other["samples/s"] and one["peak GiB"] <= other["peak GiB"]
            and (one["samples/s"], one["peak GiB"]) != (other["samples/s"], other["peak GiB"]))


def _story(lines: Sequence[Line], best: Sequence[Line]) -> str:
    """How far the incumbent has come, and what became of the others."""
    ratio = best[-1]["samples/s"] / best[0]["samples/s"]
    found = (f"After {len(lines)} trials the incumbent is trial {best[-1]['trial']} with "
             f"{number(best[-1]['samples/s'])} samples/s, {ratio:.2f} times the base")
    counts = {ended: sum(line["ended"] == ended for line in lines) for ended in
              dict.fromkeys(line["ended"] for line in lines) if ended != GOOD}
    rest = ", ".join(f"{count} {ended}" for ended, count in counts.items())
    return f"{found}; {rest}." if rest else f"{found}."


def _shown(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The columns of a trial that fit on a page."""
    return [{"trial": line["trial"], "knobs": line["knobs"], "samples/s": line["samples/s"], "loss": line["loss"],
             "peak GiB": line["peak GiB"], "ended": line["ended"], "why": line["why"]} for line in lines]
