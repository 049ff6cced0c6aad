"""The model of a pipeline gives what can be worked out by hand, and keeps what must hold for any costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.data.model import Costs, bottleneck, enough_workers, predict

PLAIN = Costs(read=0.0, decode=0.004, augment=0.0, copy=0.0, step=0.001, cores=16)


@pytest.mark.parametrize(("workers", "rate", "starved"), [(1, 250, 0.75), (2, 500, 0.5), (4, 1000, 0), (8, 1000, 0)])
def test_workers_help_until_the_step_is_the_slower_one(workers: int, rate: float, starved: float) -> None:
    found = predict(PLAIN, workers, depth=2, batch=32)
    assert found.images_per_s == pytest.approx(rate) and found.starved_share == pytest.approx(starved, abs=1e-9)
    assert found.bottleneck == ("decode" if starved else "step")


def test_without_workers_or_without_a_queue_loading_and_step_follow_each_other() -> None:
    assert predict(PLAIN, 0, depth=8, batch=32).images_per_s == pytest.approx(1 / 0.005)
    assert predict(PLAIN, 4, depth=0, batch=32).images_per_s == pytest.approx(1 / 0.002)
    assert predict(PLAIN, 4, depth=0, batch=32).starved_share == pytest.approx(0.5)


def test_decoding_needs_cores_and_reading_does_not() -> None:
    few = replace(PLAIN, cores=2)
    assert predict(few, 8, depth=2, batch=32).images_per_s == pytest.approx(500)
    waits = replace(few, read=0.004, decode=0.0)
    assert predict(waits, 8, depth=2, batch=32).images_per_s == pytest.approx(1000)
    assert predict(replace(few, copy=0.001), 2, depth=2, batch=32).images_per_s == pytest.approx(400)  # 5 ms, 2 cores


def test_a_deep_queue_bridges_a_hiccup_where_workers_have_time_to_catch_up_and_nowhere_else() -> None:
    spare = replace(PLAIN, hiccup=0.064)  # two steps
    starved = [predict(spare, 8, depth, batch=32).starved_share for depth in (1, 2, 4)]
    assert starved[0] > starved[1] > starved[2] == pytest.approx(0, abs=1e-9)
    lacking = [predict(PLAIN, 2, depth, batch=32).starved_share for depth in (1, 64)]
    assert lacking[0] == pytest.approx(lacking[1]) == pytest.approx(0.5)


def test_larger_batches_spread_the_launch() -> None:
    launched = replace(PLAIN, launch=0.032)
    assert predict(launched, 8, 2, 32).images_per_s == pytest.approx(500)
    assert predict(launched, 8, 2, 128).images_per_s == pytest.approx(800)


def test_scatter_costs_something_and_gives_the_same_each_time() -> None:
    rough = replace(PLAIN, scatter=2.0)
    found = predict(rough, 4, depth=1, batch=8)
    assert found == predict(rough, 4, depth=1, batch=8) != predict(rough, 4, depth=1, batch=8, seed=1)
    assert 0.02 < found.starved_share < 0.5
    assert predict(rough, 4, depth=16, batch=8).starved_share < found.starved_share


@pytest.mark.parametrize(("change", "name"), [
    ({}, "decode"), ({"augment": 0.005}, "augment"), ({"read": 0.01}, "read"), ({"step": 0.01}, "step"),
    ({"copy": 0.01}, "copy"), ({"launch": 1.0}, "step")])
def test_the_bottleneck_is_the_costliest_stage_of_the_slower_side(change: dict[str, Any], name: str) -> None:
    assert bottleneck(replace(PLAIN, **change), 2, 32) == name


def test_the_fewest_workers_that_feed_a_step() -> None:
    assert enough_workers(PLAIN, depth=2, batch=32) == 4
    assert enough_workers(replace(PLAIN, step=0.0009), depth=2, batch=32) == 5
    assert enough_workers(replace(PLAIN, cores=3), depth=2, batch=32) is None


seconds = st.floats(0, 0.02)


@settings(max_examples=60, deadline=None)
@given(read=seconds, decode=seconds, augment=seconds, copy=seconds, step=st.floats(1e-4, 0.02),
       cores=st.integers(1, 32), scatter=st.floats(0, 1), workers=st.integers(0, 16), depth=st.integers(0, 6),
       batch=st.integers(1, 128))
def test_no_prediction_beats_its_ceilings_and_shares_are_shares(
        workers: int, depth: int, batch: int, **costs: Any) -> None:
    made = Costs(**costs)
    found = predict(made, workers, depth, batch)
    assert found.images_per_s <= batch / made.consuming(batch) * (1 + 1e-9)
    assert 0 <= found.starved_share <= 1
    trained = found.images_per_s * made.consuming(batch) / batch
    assert found.starved_share + trained == pytest.approx(1)  # it either waits or works
