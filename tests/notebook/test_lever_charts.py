"""The charts of lesson 03 state their findings, and what they compare stands in their tables."""

import numpy as np
import pytest

from lfhelpers.notebook import lever_charts
from tests.notebook.drawing import drawn_twice

RUNGS = [{"label": label, "value": value, "low": value - 1, "high": value + 1}
         for label, value in (("as found", 100.0), ("+ fused", 80.0), ("+ graph", 20.0))]
AGAINST = {"as_found": "as found", "competent": "+ fused"}
KERNELS = {"+ fused": [{"name": "matrix products", "kernels": 10, "ms": 3.0},
                       {"name": "other", "kernels": 5, "ms": 1.0}],
           "+ graph": [{"name": "matrix products", "kernels": 6, "ms": 2.5}]}
SWEEP = {"as found": {16: 80.0, 64: 82.0}, "full": {16: 10.0, 64: 40.0}}
HALF = {"label": "fp16", "least": 2.0**-24, "most": 65504.0}


def magnitudes():
    return lever_charts.magnitudes(np.array([0.0, 1.0, 2.0**-24, 2.0**-26, 2.0**17, np.nan]), [HALF])


CHARTS = {"ladder": lambda: lever_charts.ladder_bars(RUNGS, AGAINST),
          "kernels": lambda: lever_charts.kernel_bars(KERNELS),
          "sweep": lambda: lever_charts.sweep_lines(SWEEP, "micro-batch", "ms"), "magnitudes": magnitudes}


@pytest.mark.parametrize("draw", CHARTS.values(), ids=CHARTS)
def test_a_chart_drawn_twice_is_the_same_small_svg(draw):
    drawn_twice(draw)


@pytest.mark.parametrize(("name", "alt"), {
    "ladder": "With all levers a step takes 20 ms, beside 100 ms of as_found and 80 ms of competent; "
              "+ graph wins most, 4.00 times.",
    "kernels": "+ fused runs 15 kernels for 4 ms; + graph runs 6 kernels for 2.5 ms.",
    "sweep": "From the smallest to the largest micro-batch: as found from 80 to 82 ms; full from 10 to 40 ms.",
    "magnitudes": "fp16 turns 25.0 % of the values into zero.",
}.items())
def test_alt_text_states_the_finding(name, alt):
    assert CHARTS[name]().alt == alt


def test_every_rung_is_quoted_against_both_opponents():
    assert CHARTS["ladder"]().table.rows[1:] == (("+ fused", 80.0, 79.0, 81.0, 1.25, 1.0),
                                                  ("+ graph", 20.0, 19.0, 21.0, 5.0, 4.0))


def test_a_group_that_a_rung_lacks_is_zero_and_one_that_none_has_is_left_out():
    assert CHARTS["kernels"]().table.rows == (("matrix products", 3.0, 2.5), ("other", 1.0, 0.0))


def test_every_group_looks_unlike_every_other():
    names = (*lever_charts.GROUPS, "communication")
    chart = lever_charts.kernel_bars({"run": [{"name": name, "kernels": 1, "ms": 1.0} for name in names]})
    looks = {(bars.patches[0].get_facecolor(), bars.patches[0].get_hatch()) for bars in chart.figure.axes[0].containers}
    assert len(looks) == len(names)


def test_a_point_that_one_line_lacks_stays_empty():
    chart = lever_charts.sweep_lines({"a": {1: 1.0, 2: 2.0}, "b": {2: 1.0}}, "n", "ms")
    assert chart.table.rows == ((1, 1.0, None), (2, 2.0, 1.0))


def test_what_a_format_cannot_hold_is_counted():
    assert magnitudes().table.rows == (("fp16", 2.0**-24, 65504.0, 25.0, 25.0),)
