"""The floor and the slope of step time over micro-batch are recovered, and what they mean is said."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.measure.pace import pace, picture

MICROS = (1, 2, 4, 8, 16, 32, 64)


def times(host, fixed, slope, micros=MICROS):
    return {micro: max(host, fixed + slope * micro) for micro in micros}


@given(below=st.integers(1, 5), between=st.floats(0.05, 0.95), fixed=st.floats(0.5, 50), slope=st.floats(0.1, 10))
def test_floor_slope_and_knee_are_recovered_from_exact_times(below, between, fixed, slope):
    knee = MICROS[below - 1] + between * (MICROS[below] - MICROS[below - 1])
    host = fixed + slope * knee
    fit = pace(times(host, fixed, slope))
    assert (fit.host, fit.fixed, fit.per_sample, fit.knee) == pytest.approx((host, fixed, slope, knee), rel=1e-4)
    assert fit.error < 1e-6
    assert fit.samples_per_s(64) == pytest.approx(64e3 / (fixed + slope * 64))


@given(noise=st.lists(st.floats(-0.02, 0.02), min_size=7, max_size=7))
def test_two_percent_of_noise_moves_the_knee_by_less_than_a_fifth(noise):
    exact = times(50, 10, 4)
    fit = pace({micro: ms * (1 + share) for (micro, ms), share in zip(exact.items(), noise, strict=True)})
    assert fit.knee == pytest.approx(10, rel=0.2) and fit.error < 0.06


def test_all_bound_by_the_host_or_all_by_the_device_is_said():
    host, device = pace(times(30, 0, 0.1)), pace(times(0, 5, 2))
    assert math.isinf(host.knee) and "the host sets the pace throughout: 30 ms" in host.sentence()
    assert (device.host, device.knee) == (0, 0) and "at most 500 samples/s" in device.sentence()
    with pytest.raises(LfError, match="at least three"):
        pace({1: 1.0, 2: 2.0})


def test_the_picture_holds_points_curve_and_knee():
    data = picture(times(40, 8, 2), pace(times(40, 8, 2)), largest=100)
    assert data["measured"][0] == (1, 25.0) and data["measured"][-1] == (64, pytest.approx(64e3 / 136))
    micros, rates = np.array(data["fitted"]).T
    assert micros[-1] == 100 and (np.diff(rates) > 0).all() and data["knee"] == pytest.approx(16)
    assert data["largest"] == 100 and data["enough"] == pytest.approx(45, abs=2)
    assert "below 16.0 samples the host sets the pace, 40 ms a step; above, each sample takes 2 ms" in data["sentence"]
