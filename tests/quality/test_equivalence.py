"""The equality test against known truth: simulated seeds, and published power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.measure import statistics
from lfhelpers.quality.equivalence import power, seeds, tost

PAIRED = math.sqrt(2 * (1 - 0.8))
"""Scatter of a pair's difference, in units of a seed's, where both figures of a pair correlate by 0.8."""


def passed(n: int, margin: float, sd: float, truth: float, repeats: int = 2000) -> float:
    draws = np.random.default_rng(0).normal(truth, sd, (repeats, n))
    return float(np.mean([tost(np.zeros(n), row, margin).passes for row in draws]))


def test_equal_runs_are_equal_within_the_margin() -> None:
    found = tost([0.80, 0.82, 0.79, 0.81, 0.83], [0.80, 0.83, 0.79, 0.80, 0.83], margin=0.02)
    assert found.verdict == "equal within the margin" and found.p < 0.05 and found.difference == pytest.approx(0)
    assert str(found).startswith("difference +") and "power" in str(found)


def test_nothing_shown_is_never_called_different() -> None:
    found = tost([0.80, 0.70, 0.90], [0.70, 0.85, 0.86], margin=0.02)
    assert found.verdict == "not shown" and found.p > 0.05


def test_the_figures_of_a_table_of_a_textbook() -> None:
    """Differences 1, 2, 3: mean 2, scatter 1, standard error 0.577, t(0.95, 2) = 2.920."""
    found = tost([0, 0, 0], [1, 2, 3], margin=5)
    assert (found.difference, found.sd, found.n) == (2, 1, 3)
    assert (found.low, found.high) == pytest.approx((2 - 2.920 * 0.57735, 2 + 2.920 * 0.57735), abs=1e-3)
    assert found.p == pytest.approx(0.0176, abs=3e-4)  # t = 3 / 0.577 = 5.196 with 2 degrees of freedom


@pytest.mark.parametrize(("n", "margin", "published"), [
    (3, 1, 0.37), (3, 1.5, 0.71), (3, 2, 0.91), (5, 1, 0.79), (5, 1.5, 0.99), (8, 1, 0.98)])
def test_power_of_paired_seeds(n: int, margin: float, published: float) -> None:
    assert power(n, margin, PAIRED) == pytest.approx(published, abs=0.03)


@pytest.mark.parametrize(("n", "margin", "truth"), [(3, 2.0, 0.0), (5, 1.0, 0.0), (5, 1.5, 0.5), (10, 0.7, 0.2)])
def test_power_is_how_often_simulated_runs_pass(n: int, margin: float, truth: float) -> None:
    assert passed(n, margin, 1.0, truth) == pytest.approx(power(n, margin, 1.0, truth), abs=0.03)


def test_power_comes_to_one_however_wide_the_margin() -> None:
    assert [power(5, margin, 1.0) for margin in (10.0, 1e3, 1e6)] == pytest.approx([1.0, 1.0, 1.0])


def test_a_planted_loss_of_a_percent_is_caught_with_the_stated_power() -> None:
    """Success 0.80, loss 0.008, margin half of it, scatter as of a good pairing."""
    n, margin, sd, loss = 5, 0.004, 0.0015, -0.008
    caught = 1 - passed(n, margin, sd, loss)
    assert caught == pytest.approx(1 - power(n, margin, sd, loss), abs=0.01) and caught > 0.99
    assert passed(n, margin, sd, 0.0) > 0.9  # and the same test does let equals pass


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.floats(0.1, 3.0), st.floats(0.05, 2.0))
def test_a_loss_as_large_as_the_margin_is_overlooked_once_in_twenty_at_most(n: int, margin: float, sd: float) -> None:
    assert power(n, margin, sd, margin) <= 0.0501
    assert power(n, margin, sd) <= power(n, 1.2 * margin, sd) + 1e-6


def test_a_run_against_itself_shows_no_effect_in_93_of_100_repeats() -> None:
    generator = np.random.default_rng(7)
    unchanged = 0
    for _ in range(100):
        drift = 1 + 0.1 * np.sin(np.linspace(0, 3, 16))[::2]
        a, b = (drift * np.exp(generator.normal(0, 0.02, 8)) for _ in range(2))
        unchanged += statistics.effect(a, b).verdict == "no change"
    assert unchanged >= 93


def test_how_many_seeds_are_needed() -> None:
    assert seeds(margin=1.0, sd=PAIRED) == 6 and seeds(margin=0.01, sd=1.0) is None


@pytest.mark.parametrize(("theirs", "ours", "margin", "sentence"), [
    ([1, 2], [1, 2], 0.1, "at least 3 seeds"), ([1, 2, 3], [1, 2], 0.1, "3 and 2 figures"),
    ([1, 2, 3], [1, 2, 3], 0.0, "a margin of 0.0"), ([1, 2, 3], [1, 2, math.nan], 0.1, "not finite")])
def test_what_says_nothing_is_refused(theirs: list[float], ours: list[float], margin: float, sentence: str) -> None:
    with pytest.raises(LfError, match=sentence):
        tost(theirs, ours, margin)


def test_equal_figures_to_the_bit_pass() -> None:
    assert tost([0.5] * 3, [0.5] * 3, 0.01).passes and tost([0.5] * 3, [0.6] * 3, 0.01).p == 1
