"""What a lever must show: equal losses, or losses in the band and gradients as near to float64 as eager's."""

from __future__ import annotations

import pytest

from lfhelpers.errors import LfError
from lfhelpers.quality import levers
from lfhelpers.recipe import recipe

FALLING = [1 / step for step in range(1, 41)]


def test_exact_means_to_the_bit() -> None:
    assert levers.exact(FALLING, list(FALLING)).passed
    spoilt = [*FALLING[:7], FALLING[7] + 1e-12, *FALLING[8:]]
    verdict = levers.exact(FALLING, spoilt)
    assert not verdict.passed and verdict.found.startswith("1 of 40 losses differ, first that of step 8: 0.125 without")


@pytest.mark.parametrize(("factor", "error", "passed"), [
    (1.0, 0.01, True), (1.009, 0.0149, True), (1.011, 0.01, False), (1.0, 0.0151, False)])
def test_reordered_is_judged_by_losses_and_by_gradients(factor: float, error: float, passed: bool) -> None:
    verdict = levers.reordered(FALLING, [factor * loss for loss in FALLING], error, 0.01)
    assert verdict.passed is passed and "times as far from float64 as eager's" in verdict.found


def test_a_loader_has_no_gradients_of_its_own() -> None:
    assert "gradients" not in levers.reordered(FALLING, FALLING).found


def test_runs_of_other_lengths_say_nothing() -> None:
    with pytest.raises(LfError, match="the same steps of two runs; there are 40 and 39"):
        levers.exact(FALLING, FALLING[:-1])


def test_real_gradients_of_tiny() -> None:
    job = recipe("competent", "workload.size=tiny", "device=cpu", "precision.mode=bf16")
    errors = levers.gradient_errors({"": job, "packed": job.with_("frozen.packed=true"),
                                     "coarse": job.with_(**{"precision.mode": "fp32"})})
    assert 0 < errors["packed"] <= 1.5 * errors[""] < 0.1
    assert errors["coarse"] < 0.1 * errors[""]  # fp32 is nearer
