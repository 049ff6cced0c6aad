"""A study's charts state their findings, and what they compare stands in their tables."""

import pytest

from lfhelpers.notebook import study_charts
from lfhelpers.notebook.figures import svg


def line(trial, rate, ended="done", took_over=False, gib=None, **positions):
    return {"trial": trial, "start": "", "knobs": "k", "samples/s": rate, "low": rate, "high": rate, "loss": 1.0,
            "peak GiB": gib, "ended": ended, "why": "", "took over": took_over, "positions": positions}


LINES = [line(0, 100.0, took_over=True, gib=4.0, compile="none", batch="16 x 1"),
         line(1, 110.0, gib=9.0, compile="none", batch="8 x 2"),
         line(2, None, "out of memory", compile="blocks", batch="8 x 2"),
         line(3, 300.0, "over its limits", gib=1.0, compile="blocks", batch="4 x 4"),
         line(4, 90.0, gib=3.0, compile="blocks", batch="8 x 2"),
         line(5, 200.0, took_over=True, gib=8.0, compile="blocks", batch="16 x 1"),
         line(6, None, "slower", compile="none", batch="4 x 4")]
CHARTS = {
    "history": (lambda: study_charts.history(LINES),
                "After 7 trials the incumbent is trial 5 with 200 samples/s, 2.00 times the base; 1 out of memory, "
                "1 over its limits, 1 slower."),
    "importance": (lambda: study_charts.importance({"compile": 0.8, "workers": 0.2}),
                   "compile sets good trials apart most, with 80 % of all importance."),
    "nothing known": (lambda: study_charts.importance({}),
                      "Too few trials have a figure for any knob's importance to be told."),
    "pareto": (lambda: study_charts.pareto(LINES),
               "3 of 4 trials are beaten by no other in speed and memory at once, from 90 samples/s at 3 GiB to 200 "
               "at 8."),
    "no memory": (lambda: study_charts.pareto([line(0, 1.0)]), "No trial's memory is known, which is so on a CPU."),
    "two knobs": (lambda: study_charts.two_knobs(LINES, "compile", "batch"),
                  "compile blocks is, against none, faster by a factor of 2.00 with batch 16 x 1, 0.82 with batch "
                  "8 x 2."),
}


@pytest.mark.parametrize(("draw", "alt"), CHARTS.values(), ids=CHARTS)
def test_a_chart_states_its_finding_and_is_drawn_alike_twice(draw, alt):
    first, second = draw(), draw()
    assert first.alt == alt
    pictures = [svg(chart.figure, chart.alt) for chart in (first, second)]
    assert pictures[0] == pictures[1] and "<text" in pictures[0] and len(pictures[0]) < 60_000


def test_what_failed_stands_in_the_table_and_what_was_not_tried_has_no_figure():
    table = study_charts.history(LINES).table
    assert [row[5] if len(row) > 5 else None for row in table.rows].count("out of memory") == 1
    pairs = {row[0]: row[1:] for row in study_charts.two_knobs(LINES, "compile", "batch").table.rows}
    assert pairs == {"16 x 1": (100.0, 200.0), "8 x 2": (110.0, 90.0), "4 x 4": (None, None)}


def test_a_pair_that_was_stopped_early_shows_how_far_it_came():
    lines = [*LINES, line(7, None, "slower", compile="none", batch="2 x 8") | {"until stopped": 50.0}]
    chart = study_charts.two_knobs(lines, "compile", "batch")
    assert chart.table.rows[-1] == ("2 x 8", 50.0, None)
    drawn = svg(chart.figure, chart.alt)
    assert all(note in drawn for note in ("50, stopped early", "over its limits", "slower", "not tried"))
