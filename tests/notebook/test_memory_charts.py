"""The charts of lesson 05 state their findings, and what they compare stands in their tables."""

import pytest

from lfhelpers.levers.activations_choice import Point
from lfhelpers.notebook import memory_charts
from tests.notebook.drawing import drawn_twice

MIB = 2**20


def point(name, family, ratio, saved, peak):
    return Point(name, family, {}, 10 * ratio, ratio - 0.01, ratio + 0.01, ratio, saved * MIB, peak * MIB, peak * MIB)


POINTS = [point("none", "none", 1.0, 100, 500), point("every second", "rule", 1.12, 60, 450),
          point("bargain", "blocks", 1.08, 50, 440), point("all", "blocks", 1.2, 20, 400),
          Point("budget", "budget", {}, trouble="does not fit: needs about 3 GiB")]
PICTURE = {"measured": [(1, 10.0), (2, 20.0), (4, 25.0)], "fitted": [(1.0, 10.0), (4.0, 25.0)], "knee": 2.5,
           "largest": None, "enough": 4, "sentence": "below 2.5 samples the host sets the pace"}
CHARTS = {"memory": lambda: memory_charts.memory_bars({"none": {"weights": 2 * MIB, "activations": 6 * MIB, "no": 0},
                                                       "all": {"weights": 2 * MIB, "activations": MIB}}),
          "plans": lambda: memory_charts.plans_picture(POINTS, 445 * MIB),
          "throughput": lambda: memory_charts.throughput(PICTURE)}


@pytest.mark.parametrize("draw", CHARTS.values(), ids=CHARTS)
def test_a_chart_drawn_twice_is_the_same_small_svg(draw):
    drawn_twice(draw)


@pytest.mark.parametrize(("name", "alt"), {
    "memory": "none takes 8 MiB, 75 % of it activations; all takes 3 MiB, 67 % of it weights.",
    "plans": "Within 445 MiB the fastest plan is 'bargain': 50 % fewer saved activations for +8 % of step time.",
    "throughput": "Below 2.5 samples the host sets the pace.",
}.items())
def test_alt_text_states_the_finding(name, alt):
    assert CHARTS[name]().alt == alt


def test_parts_of_nothing_are_left_out_and_bytes_are_in_a_readable_unit():
    assert CHARTS["memory"]().table.rows == (("weights", 2.0, 2.0), ("activations", 6.0, 1.0))


def test_plans_that_failed_stand_last_with_their_reason_and_the_front_is_marked():
    rows = CHARTS["plans"]().table.rows
    assert [row[0] for row in rows] == ["none", "bargain", "every second", "all", "budget"]
    assert [row[0] for row in rows if "yes" in row] == ["none", "bargain", "all"]
    assert rows[-1][-1] == "does not fit: needs about 3 GiB"
