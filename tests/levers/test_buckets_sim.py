"""The simulator gives torch's own buckets, obeys its definitions, and its optimum is the best of all plans."""

import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.levers.buckets_sim import DEFAULT, MB, Gradient, assign, optimum, simulate

FOUR = [Gradient(name, MB, ready) for name, ready in (("d", 1.0), ("c", 2.0), ("b", 3.0), ("a", 4.0))]
sizes = st.lists(st.tuples(st.integers(1, 3 * MB // 4), st.sampled_from(["float32", "bfloat16"])), min_size=1,
                 max_size=30)
plans = st.lists(st.floats(0.001, 4), max_size=5)


def a_mb_a_millisecond(size):
    """A link without latency: 1 MiB takes 1 ms."""
    return size / MB


@settings(max_examples=60, deadline=None)
@given(sizes, plans)
def test_buckets_are_those_of_torch(numbers, limits):
    """What isn't full at the end torch appends in the order of a hash table: that tail is compared as a set."""
    tensors = [torch.empty(count, dtype=getattr(torch, dtype)) for count, dtype in numbers]
    gradients = [Gradient(str(place), tensor.nbytes, float(place), dtype)
                 for place, (tensor, (_, dtype)) in enumerate(zip(tensors, numbers, strict=True))]
    theirs, _ = dist._compute_bucket_assignment_by_size(
        tensors, [int(limit * MB) for limit in limits or DEFAULT], [False] * len(tensors), list(range(len(tensors))))
    ours = [[int(gradient.name) for gradient in bucket] for bucket in assign(gradients, limits)]
    assert ours[:-2] == theirs[:-2] and sorted(ours[-2:]) == sorted(theirs[-2:])


@pytest.mark.parametrize(("limits", "ends", "exposed"), [
    ((1.0,), [2.0, 3.0, 4.0, 5.0], 1.0),  # each leaves as it is ready, and only the last one shows
    ((4.0,), [8.0], 4.0),  # one bucket: nothing is hidden
    ((3.0, 1.0), [6.0, 7.0], 3.0),  # the last one waits for the link
    ((1.0, 2.0, 1.0), [2.0, 5.0, 6.0], 2.0),
])
def test_four_gradients_by_hand(limits, ends, exposed):
    outcome = simulate(FOUR, limits, a_mb_a_millisecond, 4.0)
    assert [sent.end_ms for sent in outcome.buckets] == ends
    assert (outcome.exposed_ms, outcome.added_ms, outcome.compute_ms) == (exposed, exposed, 4.0)
    assert outcome.hidden_ms == 4.0 - exposed


def test_computation_beside_a_transfer_is_slower():
    slowed = simulate(FOUR, (1.0,), a_mb_a_millisecond, 4.0, slowing=1.0)
    assert [sent.ready_ms for sent in slowed.buckets] == [1.0, 2.5, 4.0, 5.5], "half as much in a transfer's 1 ms"
    assert (slowed.compute_ms, slowed.exposed_ms, slowed.added_ms) == (5.5, 1.0, 2.5)


gradients_of = st.lists(st.tuples(st.integers(1, 40), st.floats(0, 5)), min_size=1, max_size=8).map(
    lambda found: [Gradient(str(place), size * MB // 4, sum(gap for _, gap in found[:place + 1]))
                   for place, (size, _) in enumerate(found)])


@settings(max_examples=60, deadline=None)
@given(gradients_of, st.floats(0, 3), st.floats(0.05, 2))
def test_the_optimum_ends_before_every_other_plan(gradients, latency, ms_a_mb):
    def link(size):
        return latency + size / MB * ms_a_mb
    whole = gradients[-1].ready_ms
    best = simulate(gradients, optimum(gradients, link, slack=0.0), link, whole).end_ms
    for cuts in itertools.product((False, True), repeat=len(gradients) - 1):
        plan, bucket = [], 0
        for gradient, cut in zip(gradients, [*cuts, True], strict=True):
            bucket += gradient.size
            if cut:
                plan.append(bucket / MB)
                bucket = 0
        assert best <= simulate(gradients, plan, link, whole).end_ms + 1e-6


@settings(max_examples=60, deadline=None)
@given(gradients_of, plans, st.floats(0, 2))
def test_a_pass_never_ends_before_its_work_and_its_last_bucket(gradients, limits, slowing):
    whole = gradients[-1].ready_ms + 1.0
    outcome = simulate(gradients, limits, a_mb_a_millisecond, whole, slowing)
    assert sum(sent.size for sent in outcome.buckets) == sum(gradient.size for gradient in gradients)
    assert outcome.added_ms >= outcome.exposed_ms - 1e-9 >= -1e-9
    assert outcome.compute_ms <= whole * (1 + slowing) + 1e-9
    for before, after in itertools.pairwise(outcome.buckets):
        assert after.start_ms >= before.end_ms - 1e-9


def test_few_large_buckets_are_taken_where_they_end_as_early():
    gradients = [Gradient(str(place), MB, float(place)) for place in range(100)]
    assert len(optimum(gradients, lambda size: 0.01 + size / MB / 100)) <= 6
    assert optimum([], a_mb_a_millisecond) == ()
