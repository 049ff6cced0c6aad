"""Sets of times against the plainest possible ones: sets of whole nanoseconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.measure import intervals

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))), max_size=20)


def union(pairs):
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return intervals.union(array[:, 0], array[:, 1])


def points(times):
    return {point for start, end in times.tolist() for point in range(start, end)}


def is_canonical(times):
    flat = times.ravel()
    return bool((np.diff(flat) > 0).all())


@given(spans, spans)
def test_sets_of_times_behave_like_sets(first, second):
    a, b = union(first), union(second)
    assert points(a) == {point for start, end in first for point in range(start, end)}
    for result, expected in ((intervals.subtract(a, b), points(a) - points(b)),
                             (intervals.intersect(a, b), points(a) & points(b)),
                             (intervals.joined([a, b]), points(a) | points(b)),
                             (intervals.clip(a, 10, 40), points(a) & set(range(10, 40)))):
        assert points(result) == expected
        assert is_canonical(result), "disjoint, in order, and nothing touches"
        assert intervals.total(result) == len(expected)


@given(spans, st.lists(st.integers(-5, 80), max_size=10))
def test_what_lies_before_a_point_is_counted(pairs, where):
    times = union(pairs)
    at = np.array(where, np.int64)
    assert intervals.before(times, at).tolist() == [sum(point < end for point in points(times)) for end in where]
    assert intervals.within(times, at).tolist() == [point in points(times) for point in where]


@given(spans, spans, spans)
def test_exposed_times_and_the_rest_add_up(compute, exchange, copies):
    """What a report rests on: compute, exposed exchange, exposed copies and idle divide a window without remainder."""
    c, n, m = union(compute), union(exchange), union(copies)
    window = np.array([(0, 80)])
    busy = intervals.joined([c, n, m])
    exposed = intervals.subtract(n, c)
    parts = [c, exposed, intervals.subtract(m, intervals.joined([c, n])), intervals.subtract(window, busy)]
    assert sum(intervals.total(part) for part in parts) == 80
    assert intervals.total(exposed) <= intervals.total(n) <= intervals.total(busy) <= 80


@pytest.mark.parametrize("pairs", [[], [(3, 3)]])
def test_nothing_is_an_empty_set(pairs):
    assert union(pairs).shape == (0, 2)
    assert intervals.total(union(pairs)) == 0
