"""A link's model passes through what was measured, and a sweep over two real ranks finds the wire that it runs on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.measure.link import LEAST, MOST, SIZES, Link, bus_gb_s, sizes

MB = 2**20
TWO = Link.of((MB, 4 * MB, 16 * MB), (1.0, 2.0, 6.0), 2, "gloo")


def test_a_message_costs_what_was_measured_and_between_sizes_what_lies_between():
    assert [TWO.ms(size * MB) for size in (0, 0.5, 1, 2.5, 4, 10, 16, 28)] == [0, 1, 1, 1.5, 2, 4, 6, 10]
    assert (TWO.latency_us, TWO.gb_s) == (1000.0, pytest.approx(16 * MB / 6e6))


@given(st.lists(st.floats(0.001, 50), min_size=2, max_size=12), st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_larger_message_never_costs_less(times, one, other):
    link = Link.of([4096 * (place + 1) for place in range(len(times))], times, 2, "gloo")
    assert link.ms(min(one, other)) <= link.ms(max(one, other))


def test_twelve_sizes_from_latency_to_bandwidth():
    for device, most in MOST.items():
        found = sizes(device)
        assert len(found) == SIZES and (found[0], found[-1]) == (LEAST, most) and sorted(found) == list(found)
        assert all(size % 256 == 0 for size in found)


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert bus_gb_s(1e9, 10.0, 2) == 100.0 and bus_gb_s(1e9, 10.0, 8) == 175.0


def test_a_link_survives_json_and_says_what_it_is():
    slow = Link.of((MB, 2 * MB), (1.0, 2.0), 2, "paced", slow="gloo:1GB/s")
    assert Link.from_dict(slow.as_dict()) == slow
    assert str(slow) == "paced over 2 ranks: 1000 us latency, 1.05 GB/s with 2 MiB messages, slowed on purpose " \
                        "(gloo:1GB/s)"


def test_a_link_needs_two_sizes():
    with pytest.raises(LfError, match="two or more sizes with a time above 0 each; there are 1 sizes and 1 times"):
        Link.of((MB,), (1.0,), 2, "gloo")
