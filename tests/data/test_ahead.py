"""What the plan needs next is told exactly, for every shuffle, start and epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.data import Plan
from lfhelpers.data.ahead import Schedule


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, list[int]]:
    """A small plan and the bytes of its shards."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=9))
    shard_of = np.repeat(np.arange(len(counts)), counts)
    sizes = draw(st.lists(st.integers(1, 9), min_size=len(counts), max_size=len(counts)))
    samples = len(shard_of)
    world, micro = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    last = "pad" if samples < world * micro else draw(st.sampled_from(["pad", "drop"]))
    return Plan(samples, world, micro, 1, draw(st.integers(0, 99)), draw(st.sampled_from(["global", "block", "none"])),
                last, shard_of=shard_of, window=draw(st.integers(1, 3))), sizes


def reads(plan: Plan, start: int, stop: int) -> list[tuple[int, int]]:
    """(position, sample) of all real samples that all ranks read in steps start..stop-1."""
    found = []
    for step in range(start, stop):
        epoch = plan.epoch(step)
        places = {int(index): place for place, index in enumerate(plan.order(epoch))}
        for micro in range(plan.micro_batches(step)):
            for rank in range(plan.world):
                ids, valid = plan.slots(step, micro, rank)
                found += [(epoch * plan.samples + places[index], index) for index in ids[valid > 0].tolist()]
    return found


@given(plans(), st.data())
def test_what_is_wanted_is_what_is_read_next(made: tuple[Plan, list[int]], data: st.DataObject) -> None:
    plan, sizes = made
    start = data.draw(st.integers(0, 2 * plan.steps_per_epoch))
    stop = start + data.draw(st.integers(1, plan.steps_per_epoch))
    schedule, order = Schedule(plan, sizes, start, stop, 0), reads(plan, start, stop)
    assert schedule.start == order[0][0]
    assert plan.shard_of is not None
    limit = data.draw(st.integers(9, 30))
    for done, (place, index) in enumerate(order):
        assert schedule.position(index, place) == place
        left = [int(plan.shard_of[index]) for _, index in order[done:]]
        assert set(left) <= set(schedule.wanted(place, 10**9))
        wanted = schedule.wanted(place, limit)
        assert wanted and len(wanted) == len(set(wanted))
        assert sum(sizes[shard] for shard in wanted) <= limit
        epoch = place // plan.samples
        read, unread = ({int(plan.shard_of[index]) for at, index in order if at // plan.samples == epoch and side(at)}
                        for side in (place.__ge__, place.__le__))
        if sum(sizes[shard] for shard in read & unread) <= limit:
            assert read & unread <= set(wanted)


@given(plans())
def test_nothing_is_wanted_that_is_not_read(made: tuple[Plan, list[int]]) -> None:
    plan, sizes = made
    assert plan.shard_of is not None
    schedule = Schedule(plan, sizes, 1, 2, 0)
    read = {int(plan.shard_of[index]) for _, index in reads(plan, 1, 2)}
    assert set(schedule.wanted(schedule.start, 10**9)) == read


@given(plans())
def test_the_peak_is_the_most_that_lies_between_first_and_last_read(made: tuple[Plan, list[int]]) -> None:
    plan, sizes = made
    assert plan.shard_of is not None
    shards = plan.shard_of[plan.order(0)].tolist()
    most = 0
    for place in range(len(shards)):
        live = set(shards[:place + 1]) & set(shards[place:])
        most = max(most, sum(sizes[shard] for shard in live))
    assert Schedule(plan, sizes, 0, plan.steps_per_epoch, 0).peak() == most


def test_shuffles_differ_in_what_must_be_here_at_once() -> None:
    shard_of = np.repeat(np.arange(40), 50)
    peaks = Counter({shuffle: Schedule(Plan(2000, 1, 4, 1, 0, shuffle, shard_of=shard_of), [1] * 40, 0, 500, 0).peak()
                     for shuffle in ("none", "block", "global")})  # type: ignore[arg-type]
    assert peaks == {"none": 1, "block": 8, "global": 40}


def test_the_next_epochs_first_samples_are_known_from_far_behind() -> None:
    plan = Plan(100, 1, 10, 1, 5, "global", shard_of=np.repeat(np.arange(10), 10))
    schedule = Schedule(plan, [1] * 10, 0, 30, 10)
    first, second = plan.order(0).tolist(), plan.order(1).tolist()
    early = next(index for index in second[:20] if index in first[:40])
    assert schedule.position(early, 99) == 100 + second.index(early)
    assert schedule.position(early, 20) == first.index(early)


def test_spread_keeps_what_slower_readers_still_need() -> None:
    plan = Plan(100, 1, 10, 1, 0, "none", shard_of=np.repeat(np.arange(10), 10))
    assert Schedule(plan, [1] * 10, 0, 10, 0).wanted(50, 3) == [5, 6, 7]
    assert Schedule(plan, [1] * 10, 0, 10, 15).wanted(50, 3) == [3, 4, 5]
    assert Schedule(plan, [1] * 10, 4, 6, 15).wanted(50, 9) == [4, 5]
