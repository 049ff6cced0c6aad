"""The paired comparison: it finds what is there, is silent about what isn't, and treats both sides alike."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.measure.statistics import Effect, effect, interleave, interval, summary

TIMES = st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=3, max_size=12)
QUICK = settings(max_examples=40, deadline=None)


def noisy(seed, factor=1.0, blocks=8, noise=0.05):
    return factor * np.exp(np.random.default_rng(seed).normal(0, noise, blocks))


def test_summary():
    assert summary([1, 2, 3, 10]) == {"median": 2.5, "mean": 4.0, "p95": pytest.approx(8.95)}
    assert all(math.isnan(value) for value in summary([]).values())


def test_a_planted_fifth_is_found():
    found = [effect(noisy(seed), noisy(1000 + seed, 1 / 1.2)) for seed in range(100)]
    assert sum(one.verdict == "faster" for one in found) >= 95
    assert np.median([one.ratio for one in found]) == pytest.approx(1.2, rel=0.01)
    assert sum(one.low < 1.2 < one.high for one in found) >= 90


def test_equal_variants_are_no_change():
    verdicts = [effect(noisy(seed), noisy(1000 + seed)).verdict for seed in range(200)]
    assert verdicts.count("no change") >= 190


def test_the_interval_covers_the_true_mean_as_often_as_it_says():
    covered = [low < 0 < high for low, high in
               (interval(np.random.default_rng(seed).normal(size=8), seed) for seed in range(300))]
    assert 0.92 < np.mean(covered) < 0.99, "percentiles without the expansion cover 0.89"


@QUICK
@given(TIMES)
def test_swapping_the_sides_inverts_the_ratio(pairs):
    a, b = zip(*pairs, strict=True)
    there, back = effect(a, b), effect(b, a)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1, rel=1e-6)
    assert there.aa_spread == back.aa_spread
    assert {"faster": "slower", "slower": "faster", "no change": "no change"}[there.verdict] == back.verdict


@QUICK
@given(TIMES, st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(pairs, unit):
    a, b = zip(*pairs, strict=True)
    one, other = effect(a, b), effect([unit * time for time in a], [unit * time for time in b])
    assert (one.ratio, one.low, one.high) == pytest.approx((other.ratio, other.low, other.high))


@QUICK
@given(TIMES)
def test_the_ratio_lies_in_its_interval_and_equal_sides_are_no_change(pairs):
    a, b = zip(*pairs, strict=True)
    one = effect(a, b)
    assert one.low <= one.ratio * (1 + 1e-9) and one.ratio <= one.high * (1 + 1e-9)
    assert effect(a, a).verdict == "no change"


def test_an_effect_within_the_aa_spread_is_no_change():
    assert Effect(1.03, 1.01, 1.05, aa_spread=0.02, n=8).verdict == "faster"
    assert Effect(1.03, 1.01, 1.05, aa_spread=0.04, n=8).verdict == "no change"
    assert Effect(0.97, 0.95, 0.99, aa_spread=0.02, n=8).verdict == "slower"
    assert Effect(1.03, 0.99, 1.05, aa_spread=0.0, n=8).verdict == "no change"
    assert str(Effect(1.5, 1.4, 1.6, 0.02, 8)) == "1.500x (95 % 1.400-1.600, A/A spread ±2.0%, n=8): faster"


class Machine:
    """A clock that work moves: each call takes its time, times the drift so far."""

    def __init__(self, drift=0.0):
        self.now, self.order, self.settled, self.drift = 0.0, "", 0, drift

    def work(self, name, seconds):
        def call():
            self.order += name
            self.now += seconds * (1 + self.drift * len(self.order))
        return call

    def settle(self):
        self.settled += 1

    def time(self):
        return self.now


def test_blocks_run_a_b_b_a_and_settle_around_each_call():
    machine = Machine()
    result = interleave(machine.work("a", 2.0), machine.work("b", 1.0), blocks=4, calls=3, warmup=2,
                        settle=machine.settle, clock=machine.time)
    assert machine.order == "aabb" + "aaa" + "bbb" * 2 + "aaa" * 2 + "bbb" * 2 + "aaa"
    assert machine.settled == 2 * 24
    assert result.a == (2.0,) * 4 and result.b == (1.0,) * 4
    assert result.effect == Effect(pytest.approx(2), pytest.approx(2), pytest.approx(2), pytest.approx(0), 4)


def test_a_machine_that_slows_down_makes_no_effect():
    machine = Machine(drift=0.005)
    result = interleave(machine.work("a", 1.0), machine.work("b", 1.0), calls=5, clock=machine.time)
    assert max(result.a) > 1.3 * min(result.a), "the drift is real"
    assert result.effect.verdict == "no change"
    assert result.effect.ratio == pytest.approx(1, abs=0.01)


def test_an_outlier_within_a_block_does_not_count():
    machine, calls = Machine(), iter(range(1000))

    def stalls():
        machine.now += 50.0 if next(calls) % 5 == 0 else 1.0

    result = interleave(stalls, machine.work("b", 1.0), calls=5, warmup=0, clock=machine.time)
    assert result.effect.ratio == pytest.approx(1)


@pytest.mark.parametrize(("a", "b", "sentence"), [
    ([1, 2], [1, 2], "at least 3 pairs"), ([1, 2, 3], [1, 2], "as many of A as of B"),
    ([1, 2, 0], [1, 2, 3], "above 0"),
])
def test_too_little_to_compare_is_refused(a, b, sentence):
    with pytest.raises(LfError, match=sentence):
        effect(a, b)


def test_too_few_blocks_are_refused_before_anything_runs():
    machine = Machine()
    with pytest.raises(LfError, match="blocks >= 3"):
        interleave(machine.work("a", 1), machine.work("b", 1), blocks=2)
    with pytest.raises(LfError, match="at least 2 values"):
        interval(np.ones(1))
    assert machine.order == ""


def test_the_spread_of_a_thing_against_itself_counts_drift_and_chance():
    from lfhelpers.measure.statistics import spread

    assert spread([100.0], [110.0]) == pytest.approx(0.1)
    assert spread([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 0
    assert spread([110.0] * 5, [100.0] * 5) == pytest.approx(0.1), "a constant difference is no chance, and counts"
    assert spread([100, 120, 100], [120, 100, 120]) == pytest.approx(0.2), "in three pairs each may be the truth"
    with pytest.raises(LfError, match="there are 1 and 0"):
        spread([1.0], [])
