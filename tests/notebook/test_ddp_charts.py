"""The charts of lesson 04 state their findings, and what they show stands in their tables."""

import pytest

from lfhelpers.levers.buckets_sim import MB, Gradient, simulate
from lfhelpers.levers.project import project
from lfhelpers.levers.tuner import Model
from lfhelpers.measure.link import Link
from lfhelpers.notebook import ddp_charts
from tests.notebook.drawing import drawn_twice

GRADIENTS = [Gradient(f"layer{place}", 8 * MB, 10.0 + 2 * place) for place in range(10)]
LINK = Link.of((4096, MB, 16 * MB, 128 * MB), (0.1, 0.2, 1.6, 12.8), 2, "nccl")
OUTCOME = simulate(GRADIENTS, (8.0, 16.0), LINK.ms, 30.0)
ROWS = [{"buckets": "25 MiB", "count": 4, "largest [MiB]": 32.0, "predicted [ms]": 2.0, "measured [ms]": 2.5},
        {"buckets": "10 MiB", "count": 9, "largest [MiB]": 10.0, "predicted [ms]": 3.0, "measured [ms]": None}]


def projections():
    return {"25 MiB": project(Model(tuple(GRADIENTS), LINK), (4.0, 25.0), 50.0, 16, measured_ms=52.0)}


CHARTS = {"timeline": lambda: ddp_charts.bucket_timeline(OUTCOME, 8.0), "plans": lambda: ddp_charts.plan_bars(ROWS),
          "link": lambda: ddp_charts.link_curve({"NVLink": LINK, "TCP": Link.of(
              (4096, MB, 128 * MB), (1.0, 2.0, 100.0), 2, "nccl", "nccl:socket")}),
          "projection": lambda: ddp_charts.projection_lines(projections())}


@pytest.mark.parametrize("draw", CHARTS.values(), ids=CHARTS)
def test_a_chart_drawn_twice_is_the_same_small_svg(draw):
    drawn_twice(draw)


@pytest.mark.parametrize(("name", "alt"), {
    "timeline": "6 buckets travel for 8.11 ms, 100 % of it beside computation; 0 ms are exposed.",
    "plans": "The least is measured for 25 MiB: 2.5 ms a step, where 2 ms were predicted.",
    "link": "NVLink: 1 MiB are enough for half of its 10.5 GB/s; TCP: 128 MiB are enough for half of its 1.34 GB/s.",
}.items())
def test_the_finding_is_a_sentence_with_its_numbers(name, alt):
    assert CHARTS[name]().alt == alt


def test_what_travels_after_computation_is_exposed():
    outcome = simulate(GRADIENTS, (1000.0,), LINK.ms, 28.0)
    chart = ddp_charts.bucket_timeline(outcome)
    [row] = [dict(zip(chart.table.columns, row, strict=True)) for row in chart.table.rows]
    assert row["exposed [ms]"] == pytest.approx(outcome.exposed_ms) == pytest.approx(LINK.ms(80 * MB))
    assert (row["MiB"], row["gradients"]) == (80.0, 10)


def test_a_slowed_link_is_named_so_and_a_projection_shows_its_assumptions():
    assert any("TCP (slowed: nccl:socket)" in str(row[0]) for row in CHARTS["link"]().table.rows)
    chart = CHARTS["projection"]()
    cells = [str(row[0]) for row in chart.table.rows]
    assert "not measured" in chart.alt and "not measured" in chart.table.caption
    assert sum(cell.startswith("assumed: ") for cell in cells) == len(projections()["25 MiB"].assumptions)
    assert any("projected over measured step, 2 GPUs" in cell for cell in cells)


def test_plans_that_were_only_simulated_are_said_to_be():
    alone = [row | {"measured [ms]": None} for row in ROWS]
    assert ddp_charts.plan_bars(alone).alt == "The least is predicted for 25 MiB: 2 ms a step."
