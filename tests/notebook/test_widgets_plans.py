"""Bucket sizes, a budget and a ladder under controls: what each says at first, and after a change."""

import pytest

from lfhelpers.levers.activations_choice import Point
from lfhelpers.levers.buckets_sim import MB, Gradient
from lfhelpers.levers.tuner import Model
from lfhelpers.measure.link import Link
from lfhelpers.measure.record import Record, Row
from lfhelpers.notebook import widgets_plans
from lfhelpers.notebook.widgets import Explorer

LINK = Link.of((4096, MB, 16 * MB, 128 * MB), (0.1, 0.2, 1.6, 12.8), 2, "nccl")
MODEL = Model(tuple(Gradient(f"layer{place}", 8 * MB, 10.0 + 2 * place) for place in range(10)), LINK)


@pytest.fixture
def made(monkeypatch):
    kept = []
    monkeypatch.setattr(widgets_plans, "explore", lambda draw, labels, **ranges: kept.append(
        (Explorer(draw, ranges, labels), draw())))
    return kept


def test_a_faster_link_exposes_less(made):
    widgets_plans.bucket_simulator(MODEL)
    ((explorer, first),) = made
    assert first.alt.startswith("Simulated, the link's speed times 1.")
    slow, fast = (widgets_plans.buckets_of(MODEL, 8, 16, 8, times).exposed_ms for times in (0.25, 4.0))
    assert slow > 2 * fast
    explorer.controls["times_link"].value = 4.0
    assert "the link&#x27;s speed times 4." in explorer.result.value


def plan(name, ratio, saved, peak, family="blocks"):
    return Point(name, family, {}, 10 * ratio, ratio, ratio, ratio, saved * MB, peak * MB, peak * MB)


def test_a_smaller_budget_takes_a_slower_plan(made):
    points = [plan("keep all", 1.0, 60, 100, "none"), plan("half the blocks", 1.1, 30, 70),
              plan("all blocks", 1.3, 5, 40)]
    widgets_plans.budget(points)
    ((explorer, first),) = made
    assert "half the blocks" in first.alt
    limit = explorer.controls["mib"]
    limit.value = limit.max
    assert "keep all" in explorer.result.value.split("<figcaption>")[1].split("</figcaption>")[0]
    limit.value = limit.min
    assert "<img" not in explorer.result.value, "no plan fits, and that is said in words"


def climbed():
    rates = {"as found": 10.0, "+ fused AdamW": 12.0, "+ CUDA graph": 18.0, "full": 18.0, "- fused AdamW": 15.0}
    rows = [Row(name, rate, rate, rate, "samples/s", 3) for name, rate in rates.items()]
    rows += [Row(name, rate / 10, rate / 10, rate / 10, "x as found", 3) for name, rate in rates.items()]
    rows += [Row(name, 40 + rate, 40 + rate, 40 + rate, "GiB at the peak", 3) for name, rate in rates.items()]
    return Record("ladder", {"gates": {}, "failed": {}}, rows, {}, 0.02, hardware={"gpus": []}, versions={},
                  commit=None)


def test_the_ladder_is_climbed_rung_by_rung_in_any_figure(made):
    widgets_plans.ladder(climbed(), "Made up.")
    ((explorer, (first, origin)),) = made
    assert origin == "Made up."
    assert first.alt.startswith("The full stack reaches 18 samples/s, 1.80 times as found.")
    explorer.controls["rungs"].value = 2
    assert "The ladder has reached + fused AdamW: 12 samples/s, 1.20 times as found." in explorer.result.value
    assert "CUDA graph" not in explorer.result.value
    explorer.controls["figure"].value = "peak GiB"
    assert explorer.controls["figure"].options[:2] == ("samples/s", "x as found")
