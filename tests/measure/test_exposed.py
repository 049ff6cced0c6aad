"""What computation hides of communication: intervals by hand and at random, and a real profile on a CPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from lfhelpers.measure import intervals
from lfhelpers.measure.exposed import (
    exposure,
    is_communication,
    of_events,
    split,
    split_each,
)
from lfhelpers.measure.timeline import Span, times

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)).map(
    lambda pair: Span("", "", pair[0], pair[0] + pair[1])), max_size=12)


def span(name, start, end):
    return Span("stream 7", name, start, end)


def test_only_what_no_kernel_covers_is_exposed():
    found = exposure([span("gemm", 0, 1000), span("gemm", 500, 1500), span("adam", 3000, 4000)],
                     [span("nccl", 1400, 1700), span("nccl", 1700, 2900), span("nccl", 3900, 4000)])
    assert (found.step_ms, found.computing_ms, found.communicating_ms) == (4.0, 2.5, 1.6)
    assert found.exposed_ms == 1.4 and found.share == 0.35
    assert found.durations == pytest.approx([0.3, 1.2, 0.1])
    assert exposure([], []).share == 0.0


@settings(max_examples=80, deadline=None)
@given(spans, spans)
def test_what_is_left_is_what_counting_moments_leaves(first, second):
    left = {moment for one in first for moment in range(one.start_us, one.end_us)} - {
        moment for one in second for moment in range(one.start_us, one.end_us)}
    rest = intervals.subtract(times(first), times(second))  # in nanoseconds, 1000 a moment
    assert {moment for start, end in rest.tolist() for moment in range(start // 1000, end // 1000)} == left
    assert intervals.total(rest) == 1000 * len(left)


def test_the_fastest_rank_shows_the_transfer_and_the_others_wait():
    assert (split([3.0, 5.0]).transfer_ms, split([3.0, 5.0]).waiting_ms) == (3.0, 1.0)
    each = split_each([[9.0, 3.0, 2.0], [1.0, 4.0]])
    assert [(part.transfer_ms, part.waiting_ms) for part in each] == [(1.0, 1.0), (2.0, 1.0)], \
        "collectives are matched from the last one back"


@pytest.mark.parametrize(("name", "expected"), [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long)", True),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", True),
    ("void rcclGenericKernel<1, false>(ncclDevComm*)", True),
    ("gloo:all_reduce", True), ("nccl:all_reduce", False), ("void at::native::reduce_kernel<512, 1>", False),
    ("nvjet_tst_128x64", False),
])
def test_communication_is_told_by_name(name, expected):
    """`nccl:all_reduce` is torch's bracket around the kernel on the same timeline, and would count twice."""
    assert is_communication(name) is expected


def test_a_profile_without_peers_shows_computation_alone():
    weight = torch.randn(64, 64, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        (weight @ weight).sum().backward()
    found = of_events(profiled.events(), on_gpu=False)
    assert found.computing_ms > 0 and found.collectives == () and found.exposed_ms == 0.0
