"""A step taken apart and put together otherwise: it begins as it was measured, and what is hidden costs nothing."""

from dataclasses import replace

import pytest

from lfhelpers import runs
from lfhelpers.diagnose import diagnose
from lfhelpers.diagnose.whatif import WhatIf

STEP = WhatIf(micro=8, samples=16, data_ms=150.0, compute_ms=100.0, fixed_ms=20.0, exchange_ms=40.0, hidden=0.5,
              ahead=1.0)


@pytest.mark.parametrize("name", ["as_found", "competent", "full"])
def test_a_recorded_run_begins_as_it_was_measured(name):
    report = diagnose(runs.recorded(f"h200x1/{name}"))
    found = WhatIf.of(report)
    assert found.step_ms == pytest.approx(sum(report.ms.values()))
    assert found.samples_per_s == pytest.approx(report.samples_per_s, rel=0.02)
    assert found.bound == ("the loader" if name == "as_found" else "computation")


def test_what_lies_beside_each_other_takes_as_long_as_the_longer_one():
    assert STEP.parts == {"data_wait": 30.0, "computation": 100.0, "communication": 20.0}
    assert (STEP.step_ms, STEP.bound) == (150.0, "the loader")
    assert replace(STEP, data_ms=110.0).parts["data_wait"] == 0.0
    assert replace(STEP, data_ms=110.0).step_ms == 120.0
    assert replace(STEP, hidden=1.0).parts["communication"] == 0.0
    assert replace(STEP, exchange_ms=300.0, hidden=1.0).bound == "the exchange"
    assert replace(STEP, ahead=0.0).step_ms == 270.0


def test_faster_computation_alone_wins_nothing_while_the_loader_is_longer():
    assert replace(STEP, compute_ms=50.0).step_ms == STEP.step_ms


def test_a_larger_micro_batch_shares_what_does_not_grow_with_it():
    large = replace(STEP, data_ms=0.0).with_micro(16)
    assert (large.samples, large.compute_ms, large.exchange_ms) == (32, 180.0, 40.0)
    assert STEP.with_micro(8) == STEP
