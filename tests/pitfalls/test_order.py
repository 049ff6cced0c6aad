"""Fingerprints of what each step was given: equal for equal data, whoever delivers it, and different for any other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lfhelpers as lf
from lfhelpers import runs
from lfhelpers.data.order import Plan
from lfhelpers.errors import LfError
from lfhelpers.pitfalls.base import job, trained
from lfhelpers.pitfalls.order import order_fingerprint
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook
from lfhelpers.train.loop import train
from lfhelpers.train.order_hash import OrderHash, pixels
from lfhelpers.train.ranks import Ranks
from tests.train.toy import ALONE


def written(folder, world, micro, accumulate, seed=0, change=None):
    """The fingerprint of an epoch of 24 samples, delivered by `world` ranks."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (24, 2, 8, 8, 3), dtype=np.uint8))
    if change is not None:
        images[change] += 1
    run = Run(folder)
    plan = Plan(24, world, micro, accumulate, seed)
    (folder / "recipe.toml").write_text("")
    for rank in range(world):
        hook = OrderHash(Ranks(rank, world, torch.device("cpu")))
        hook.run_start(None, run, None)
        for step, number in plan.sequence(0, plan.steps_per_epoch):
            ids, valid = plan.slots(step, number, rank)
            hook.batch_taken(step, plan.rows(step, number, rank), {
                "ids": torch.from_numpy(ids), "valid": torch.from_numpy(valid), "images": images[ids]})
        for step in range(plan.steps_per_epoch):
            hook.step({"step": step + 1})
    return order_fingerprint(run)


@settings(max_examples=15, deadline=None)
@given(shape=st.sampled_from([(1, 4, 2), (2, 4, 1), (4, 2, 1), (2, 2, 2), (8, 1, 1), (1, 1, 8)]))
def test_ranks_and_micro_batches_do_not_enter(tmp_path_factory, shape):
    one = written(tmp_path_factory.mktemp("one"), 1, 8, 1)
    other = written(tmp_path_factory.mktemp("other"), *shape)
    assert one == other and one.digest == other.digest and one.against(other) == ""
    assert one.samples == (8, 8, 8) and len(set(one.ids)) == 3


def test_another_order_and_another_picture_are_told_apart(tmp_path_factory):
    one = written(tmp_path_factory.mktemp("one"), 2, 4, 1)
    other = written(tmp_path_factory.mktemp("other"), 2, 4, 1, seed=1)
    assert one.digest != other.digest and one.against(other) == "3 of 3 steps had other samples, first step 1"
    repainted = written(tmp_path_factory.mktemp("repainted"), 2, 4, 1, change=5)
    assert one.digest == repainted.digest and one != repainted
    assert one.against(repainted).startswith("1 of 3 steps had other pixels")


def test_padding_counts_nothing(tmp_path):
    assert written(tmp_path, 2, 5, 1).samples == (10, 10, 4)


def test_images_on_no_host_are_left_out():
    assert pixels(None) is None
    assert pixels(torch.zeros(3, 1, 4, 4, 3, dtype=torch.uint8)).shape == (3,)


class Stop(Hook):
    def step_end(self, step):
        if step == 5:
            raise KeyboardInterrupt


def test_a_resumed_run_has_the_fingerprint_of_one_that_never_stopped(runs_root):
    with trained() as whole, job("checkpoint.every=2") as chosen:
        run = runs.create(chosen)
        with pytest.raises(KeyboardInterrupt):
            train(chosen, run, ALONE, hooks=[Stop()])
        train(chosen, run, ALONE, resume=True)
        assert lf.order_fingerprint(run) == lf.order_fingerprint(whole)
        assert lf.order_fingerprint(run).steps == tuple(range(1, 9))


def test_a_run_without_a_step_has_none(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(LfError, match=r"has no order-rank-\*.jsonl"):
        order_fingerprint(Run(tmp_path))
