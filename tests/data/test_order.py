"""Each sample once an epoch, the same for any number of ranks, and equally many batches for each of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.data import Plan
from lfhelpers.errors import LfError

WORLDS = st.sampled_from([1, 2, 3, 7])
PLANS = st.builds(Plan, samples=st.integers(1, 200), world=WORLDS, micro=st.integers(1, 5),
                  accumulate=st.integers(1, 4), seed=st.integers(0, 2**70), shuffle=st.sampled_from(["global", "none"]))


def read(plan: Plan, epoch: int) -> list[int]:
    """All ids that count in an epoch, over ranks and micro-batches."""
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    rows = [plan.slots(step, micro, rank) for step, micro in plan.sequence(steps.start, steps.stop)
            for rank in range(plan.world)]
    return [int(index) for ids, valid in rows for index in ids[valid == 1]]


@given(PLANS, st.integers(0, 3))
@settings(deadline=None, max_examples=80)
def test_every_sample_is_read_once_an_epoch(plan: Plan, epoch: int) -> None:
    assert sorted(read(plan, epoch)) == list(range(plan.samples))


@given(PLANS)
@settings(deadline=None, max_examples=80)
def test_no_rank_ever_gets_a_batch_of_another_size(plan: Plan) -> None:
    for step, micro in plan.sequence(0, 2 * plan.steps_per_epoch):
        for rank in range(plan.world):
            ids, valid = plan.slots(step, micro, rank)
            assert ids.shape == valid.shape == (plan.micro,)
            assert ids.dtype == np.int64 and valid.dtype == np.float32
            assert (ids >= 0).all() and (ids < plan.samples).all()
    last = plan.steps_per_epoch - 1
    for rank in range(plan.world):  # a last micro-batch without a single real sample would be a wasted pass
        if plan.slots(last, plan.micro_batches(last) - 1, rank)[1].any():
            break
    else:
        pytest.fail("the last micro-batch holds padding alone")


@given(PLANS, st.integers(0, 40))
@settings(deadline=None, max_examples=80)
def test_padding_repeats_the_start_of_the_epoch_after_all_real_samples(plan: Plan, step: int) -> None:
    real = plan.real_samples(step)
    order = plan.order(plan.epoch(step))
    first = step % plan.steps_per_epoch * plan.global_batch
    for micro in range(plan.micro_batches(step)):
        for rank in range(plan.world):
            rows, (ids, valid) = plan.rows(step, micro, rank), plan.slots(step, micro, rank)
            for position, index, counts in zip(range(rows.start, rows.stop), ids, valid, strict=True):
                assert counts == (position < real)
                assert index == order[(first + position) % plan.samples]


@pytest.mark.parametrize("samples", [48, 41, 7, 60])
def test_the_steps_hold_the_same_samples_for_every_world_with_the_same_global_batch(samples: int) -> None:
    splits = [(1, 24, 1), (2, 4, 3), (3, 2, 4), (6, 4, 1), (4, 1, 6), (1, 1, 24)]
    plans = [Plan(samples, *split, seed=5) for split in splits]
    for step in range(2 * plans[0].steps_per_epoch):
        batches = []
        for plan in plans:
            batch = np.full(plan.global_batch, -1)
            for micro in range(plan.micro_batches(step)):
                for rank in range(plan.world):
                    ids, valid = plan.slots(step, micro, rank)
                    batch[plan.rows(step, micro, rank)] = np.where(valid == 1, ids, -1)
            batches.append(batch.tolist())
        assert all(batch == batches[0] for batch in batches)


def test_a_short_last_step_has_fewer_micro_batches() -> None:
    plan = Plan(samples=21, world=2, micro=2, accumulate=2, seed=0)
    assert [plan.micro_batches(step) for step in range(3)] == [2, 2, 2]  # 8 + 8 + 5 samples
    assert Plan(samples=19, world=2, micro=2, accumulate=2, seed=0).micro_batches(2) == 1  # 8 + 8 + 3
    assert list(plan.sequence(2, 4)) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert plan.slots(2, 1, 1)[1].tolist() == [0, 0]  # a batch of padding alone, but never an empty one


def test_drop_leaves_the_rest_of_each_epoch_out() -> None:
    plan = Plan(samples=21, world=2, micro=2, accumulate=2, seed=0, last="drop")
    first, second = read(plan, 0), read(plan, 1)
    assert plan.steps_per_epoch == 2
    assert len(first) == len(set(first)) == len(set(second)) == 16
    assert set(first) != set(second)


def test_epochs_and_seeds_have_orders_of_their_own_and_keep_them() -> None:
    plan = Plan(samples=1000, world=1, micro=8, accumulate=1, seed=3)
    orders = [plan.order(0).copy(), plan.order(1).copy(), Plan(1000, 1, 8, 1, seed=4).order(0)]
    assert np.array_equal(plan.order(0), orders[0])
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert (orders[a] == orders[b]).mean() < 0.02
    assert Plan(10, 1, 1, 1, seed=0).order(0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]  # for every numpy version


def test_block_shuffle_stays_inside_windows_of_shards() -> None:
    shard_of = np.repeat(np.arange(12), [5, 9, 7, 8, 6, 10, 4, 9, 8, 7, 6, 5])
    plan = Plan(len(shard_of), 1, 4, 1, seed=1, shuffle="block", shard_of=shard_of, window=3)
    order = plan.order(0)
    assert sorted(order.tolist()) == list(range(len(shard_of)))
    met, windows = list(dict.fromkeys(shard_of[order].tolist())), []
    for shards in [shard_of[order]]:
        while len(shards):
            window = list(dict.fromkeys(shards.tolist()))[:3]
            size = int(np.isin(shard_of, window).sum())
            windows.append(Counter(shards[:size].tolist()))
            shards = shards[size:]
    assert len(windows) == 4
    assert all(len(window) == 3 for window in windows)
    assert met != sorted(met)
    assert not np.array_equal(order, plan.order(1))


def test_no_shuffle_reads_from_front_to_back() -> None:
    assert Plan(5, 1, 1, 1, seed=9, shuffle="none").order(3).tolist() == [0, 1, 2, 3, 4]


def test_the_state_is_a_few_values_and_continues_under_another_world() -> None:
    saved = Plan(41, world=2, micro=4, accumulate=3, seed=5, manifest="abc").state(7)
    assert saved["step"] == 7 and saved["epoch"] == 3
    assert Plan(41, world=6, micro=4, accumulate=1, seed=5, manifest="abc").check_state(saved) == 7


@pytest.mark.parametrize("change", [
    {"manifest": "abd"}, {"seed": 6}, {"micro": 8}, {"shuffle": "none"}, {"last": "drop"}])
def test_a_state_of_another_order_is_refused(change: dict[str, object]) -> None:
    plain: dict[str, object] = {"samples": 41, "world": 2, "micro": 4, "accumulate": 3, "seed": 5, "manifest": "abc"}
    saved = Plan(**plain).state(7)  # type: ignore[arg-type]
    with pytest.raises(LfError, match=r"can't be continued: its .* is .*, this run's is"):
        Plan(**plain | change).check_state(saved)  # type: ignore[arg-type]


@pytest.mark.parametrize(("options", "sentence"), [
    ({"samples": 7, "last": "drop"}, r"7 samples are fewer than one global batch of 8 \(2 ranks x 2 micro x 2"),
    ({"samples": 0}, "the dataset has no samples"),
    ({"samples": 9, "shuffle": "block"}, "needs to know the shard of each sample"),
])
def test_impossible_plans_are_refused_before_the_start(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(LfError, match=sentence):
        Plan(world=2, micro=2, accumulate=2, seed=0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("samples", "last", "end"), [
    (21, "pad", "the last step has 5 samples and 3 padded rows that count nothing"),
    (21, "drop", "5 samples are dropped each epoch"),
    (24, "pad", "nothing is padded or dropped"),
])
def test_describe_says_what_is_padded_or_dropped(samples: int, last: str, end: str) -> None:
    text = Plan(samples, world=2, micro=2, accumulate=2, seed=0, last=last).describe()  # type: ignore[arg-type]
    assert text.startswith(f"{samples} samples: ") and text.endswith(end)
    assert "8 (2 ranks x 2 micro x 2 accumulate)" in text
