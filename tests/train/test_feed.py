"""What comes out of the feed: batches on the device, augmented there where the recipe says so."""

import numpy as np
import pytest
import torch

from lfhelpers.data import Plan, augment_device
from lfhelpers.errors import LfError
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import recipe
from lfhelpers.train.feed import Feed
from lfhelpers.workloads.base import find
from tests.train.toy import ALONE, Toy

PLAN = Plan(12, 1, 4, 1, seed=3)


class Mixing(Toy):
    """Weights its targets, as MixUp asks."""

    mixes = True

    def loss(self, model, batch, draws):
        given = model(batch["x"])
        shares = torch.stack([batch["mix"], 1 - batch["mix"]])
        targets = torch.stack([batch["y"], batch["y"][batch["partner"]]])
        error = ((given - targets) ** 2).sum(-1)
        return ((error * shares).sum(0) * batch["valid"]).sum(), batch["valid"].sum()


def fed(*overrides):
    """(host batches, batches out of the feed) of an epoch."""
    job = recipe("competent", "steps=3", "seed=3", "device=cpu", *overrides)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 4, 1, 8, 8, 3), dtype=np.uint8))
    host = [{"images": images[step], "ids": torch.from_numpy(PLAN.slots(step, 0, 0)[0])} for step in range(3)]
    feed = Feed(iter(host), PLAN, Toy(job), ALONE, StepClock(ALONE.device), job, 0)
    return host, [batch for batch, _ in feed]


def test_without_augmentation_batches_come_as_they_are():
    for host, batch in zip(*fed(), strict=True):
        assert set(batch) == {"images", "ids"} and torch.equal(batch["images"], host["images"])


def test_what_the_device_is_to_augment_is_augmented_here():
    host, batches = fed("data.rand_augment=2", "data.mixup=0.4")
    before = [batch["images"].clone() for batch in fed()[0]]
    fields = recipe("competent", "data.rand_augment=2", "data.mixup=0.4").data
    for step, (given, batch) in enumerate(zip(host, batches, strict=True)):
        expected = augment_device.apply(given["images"], given["ids"].numpy(), fields, 3, 0, step, 0)
        assert all(torch.equal(batch[name], value) for name, value in expected.items())
        assert not torch.equal(batch["images"], given["images"])
        assert torch.equal(given["images"], before[step]), "an engine may hand the same batch out again"


def test_what_workers_augmented_is_left():
    host, batches = fed("data.rand_augment=2", "data.aug_on=workers", "data.loader=two_level")
    assert all(torch.equal(batch["images"], given["images"]) for given, batch in zip(host, batches, strict=True))


def test_a_workload_that_does_not_mix_is_never_given_mixed_images():
    with pytest.raises(LfError, match=r"^data.mixup: workload Toy does not say that its loss weights"):
        find(recipe("competent", "workload.use=tests.train.toy:Toy", "data.mixup=0.2"))
    with pytest.raises(LfError, match=r"^data.mixup: workload Vla does not say"):
        find(recipe("competent", "data.mixup=0.2"))
    assert find(recipe("competent", "workload.use=tests.train.test_feed:Mixing", "data.mixup=0.2")).mixes


def test_a_run_with_two_levels_trains_and_tells_of_its_queues(toy_run):
    overrides = ["workload.use=tests.train.test_feed:Mixing", "data.mixup=0.3", "data.loader=two_level"]
    _, on_workers = toy_run(*overrides, "data.aug_on=workers", "data.workers=2")
    _, on_device = toy_run(*overrides, "data.aug_on=device", "data.workers=2")
    assert on_workers["loss"] == on_device["loss"], "this workload has no images: shares and partners are all there is"
    assert (on_workers["data"]["processes"], on_device["data"]["processes"]) == (1, 0)
    assert on_workers["data"]["batches"] == 12 and set(on_workers["data"]["stages"]) == {"decode", "augment"}
