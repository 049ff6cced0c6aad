"""RandAugment and MixUp: drawn by sample alone, spread as published, and the same pixels on cores and on the device."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from lfhelpers.data import augment, augment_device
from lfhelpers.data.augment import MOVING, OPERATIONS, Operations
from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from lfhelpers.recipe.fields import DataFields

SIZE = 40
COUNT = len(OPERATIONS)


def pictures(samples: int, views: int = 2, size: int = SIZE, seed: int = 0) -> augment.Pixels:
    """Smooth colours with some grain: uint8 [samples, views, size, size, 3]."""
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 256, (samples * views, 5, 6, 3), dtype=np.uint8)
    smooth = np.stack([np.asarray(Image.fromarray(each).resize((size, size), Image.Resampling.BICUBIC))
                       for each in small])
    grain = draw.normal(0, 6, (samples * views, size, size, 1))
    return (smooth + grain).clip(0, 255).astype(np.uint8).reshape(samples, views, size, size, 3)


def by_pillow(images: augment.Pixels, chosen: Operations) -> augment.Pixels:
    return np.stack([augment.on_pillow(*row) for row in zip(images, *chosen, strict=True)])


def every_operation(strength: int) -> Operations:
    """Each operation at this strength in both directions: for 2 x 14 samples."""
    drawn = augment.choose(0, 0, np.arange(1000), 1, strength)
    rows: list[int] = []
    for kind in range(COUNT):
        own = np.flatnonzero(drawn.kinds[:, 0] == kind)
        rows += [own[drawn.values[own, 0].argmin()], own[drawn.values[own, 0].argmax()]]
    return Operations(drawn.kinds[rows], drawn.values[rows])


@pytest.mark.parametrize("strength", [0, 9, 17, 30])
def test_the_device_makes_the_pixels_of_pillow(strength: int) -> None:
    """Colours bit for bit; what is moved within one level of 255, and in few places."""
    images, chosen = pictures(2 * COUNT), every_operation(strength)
    expected = by_pillow(images, chosen).astype(int)
    found = augment_device.rand_augment(torch.from_numpy(images), chosen).numpy()
    for row, kind in enumerate(chosen.kinds[:, 0].tolist()):
        difference = np.abs(expected[row] - found[row])
        if OPERATIONS[kind] in MOVING:
            assert difference.max() <= 1 and (difference > 0).mean() < 0.05, OPERATIONS[kind]
        else:
            assert difference.max() == 0, OPERATIONS[kind]


def test_several_operations_differ_by_little_more_on_the_device() -> None:
    """A level that one operation rounds otherwise, the next may spread: posterize by 16, equalize by a few."""
    images, chosen = pictures(64), augment.choose(3, 1, np.arange(64), 3, 15)
    found = augment_device.rand_augment(torch.from_numpy(images), chosen).numpy()
    difference = np.abs(by_pillow(images, chosen).astype(int) - found)
    assert difference.mean() < 0.05 and (difference > 2).mean() < 0.005


@pytest.mark.parametrize("seed", range(3))
def test_odd_images_are_the_same_on_the_device_too(seed: int) -> None:
    """One level, two levels, black, white, noise: where tables of histograms have no width."""
    draw = np.random.default_rng(seed)
    flat = np.broadcast_to(draw.integers(0, 256, (4, 1, 1, 1, 3)), (4, 2, SIZE, SIZE, 3))
    two = np.where(draw.random((4, 2, SIZE, SIZE, 1)) < 0.01, 200, 30) * np.ones(3)
    extremes = np.stack([np.zeros((2, SIZE, SIZE, 3)), np.full((2, SIZE, SIZE, 3), 255)])
    noise = draw.integers(0, 256, (4, 2, SIZE, SIZE, 3))
    images = np.concatenate([flat, two, extremes, noise]).astype(np.uint8)
    values = every_operation(20).values[::2, 0].tolist()
    for kind in (place for place in range(COUNT) if OPERATIONS[place] not in MOVING):
        chosen = Operations(np.full((len(images), 1), kind), np.full((len(images), 1), values[kind]))
        found = augment_device.rand_augment(torch.from_numpy(images), chosen).numpy()
        assert np.array_equal(by_pillow(images, chosen), found), OPERATIONS[kind]


def test_all_views_of_a_sample_are_changed_alike_and_the_input_is_left() -> None:
    images = pictures(20, views=1).repeat(2, axis=1)
    before, chosen = images.copy(), augment.choose(0, 0, np.arange(20), 2, 20)
    for done in (by_pillow(images, chosen), augment_device.rand_augment(torch.from_numpy(images), chosen).numpy()):
        assert np.array_equal(done[:, 0], done[:, 1])
        assert not np.array_equal(done, before) and np.array_equal(images, before)


def test_strength_0_changes_nothing_but_by_what_has_no_strength() -> None:
    images, chosen = pictures(2 * COUNT), every_operation(0)
    done = by_pillow(images, chosen)
    changed = {OPERATIONS[kind] for kind, old, new in zip(chosen.kinds[:, 0], images, done, strict=True)
               if not np.array_equal(old, new)}
    assert changed <= {"auto_contrast", "equalize"} and "equalize" in changed


def test_strength_grows_to_the_published_range() -> None:
    both: list[float] = every_operation(30).values.ravel().tolist()
    values = {name: both[2 * kind:2 * kind + 2] for kind, name in enumerate(OPERATIONS)}
    assert values["rotate"] == [-30, 30] and values["posterize"] == [4, 4] and values["solarize"] == [0, 0]
    assert values["shear_x"] == values["shear_y"] == [-0.3, 0.3]
    assert values["brightness"] == values["colour"] == values["sharpness"] == pytest.approx([0.1, 1.9])
    assert values["translate_x"] == pytest.approx([-150 / 331, 150 / 331])
    assert -15 in every_operation(15).values


def test_a_samples_operations_depend_on_itself_alone() -> None:
    together = augment.choose(7, 2, np.arange(50), 3, 9)
    for index in (0, 13, 49):
        alone = augment.choose(7, 2, np.array([index]), 3, 9)
        assert alone.kinds.tolist() == [together.kinds[index].tolist()]
        assert alone.values.tolist() == [together.values[index].tolist()]
    more = augment.choose(7, 2, np.arange(50), 4, 9)
    assert np.array_equal(more.kinds[:, :3], together.kinds), "a further operation leaves those before it"
    for other in (augment.choose(8, 2, np.arange(50), 3, 9), augment.choose(7, 3, np.arange(50), 3, 9)):
        assert (other.kinds != together.kinds).mean() > 0.7


def test_operations_and_directions_are_equally_likely() -> None:
    drawn = augment.choose(1, 0, np.arange(14_000), 2, 9)
    counts = Counter(drawn.kinds.ravel().tolist())
    assert set(counts) == set(range(COUNT))
    assert max(abs(count / 2000 - 1) for count in counts.values()) < 0.1
    assert abs(stats.pearsonr(*drawn.kinds.T).statistic) < 0.03, "the two operations of a sample are independent"
    turned = drawn.values[drawn.kinds == OPERATIONS.index("rotate")]
    assert abs((turned > 0).mean() - 0.5) < 0.04


@pytest.mark.parametrize("weight", [0.0, 0.03, 0.4, 0.5, 0.77, 1.0])
def test_mixup_is_the_same_on_the_device(weight: float) -> None:
    images = pictures(5)
    mixed = augment.mix(images, weight)
    assert np.array_equal(mixed, augment_device.mix(torch.from_numpy(images), weight).numpy())
    entries = augment_device.mixing(5, weight)
    assert entries["mix"].tolist() == pytest.approx([weight] * 5) and entries["mix"].dtype == torch.float32
    assert entries["partner"].tolist() == augment.partners(5).tolist() == [4, 0, 1, 2, 3]
    exact = weight * images + (1 - weight) * images[entries["partner"].numpy()].astype(float)
    assert np.abs(mixed - exact).max() < 1.001, "rounded down"


def test_mixups_share_follows_its_beta_distribution() -> None:
    for alpha in (0.2, 1.0, 4.0):
        shares = [augment.share(alpha, 0, 0, step, micro) for step in range(500) for micro in range(2)]
        assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 0.01
    assert augment.share(0.4, 3, 1, 7, 0) == augment.share(0.4, 3, 1, 7, 0)
    others = [augment.share(0.4, *place) for place in ((4, 1, 7, 0), (3, 2, 7, 0), (3, 1, 8, 0), (3, 1, 7, 1))]
    assert augment.share(0.4, 3, 1, 7, 0) not in others


@settings(max_examples=20, deadline=None)
@given(samples=st.integers(1, 6), views=st.integers(0, 2), count=st.integers(0, 3), strength=st.integers(0, 30),
       mixup=st.sampled_from([0.0, 0.3]))
def test_any_batch_keeps_its_shape(samples: int, views: int, count: int, strength: int, mixup: float) -> None:
    images = torch.from_numpy(pictures(samples, views, 8)) if views else torch.empty(samples, 0, 8, 8, 3,
                                                                                     dtype=torch.uint8)
    fields = DataFields(rand_augment=count, rand_magnitude=strength, mixup=mixup)
    entries = augment_device.apply(images, np.arange(samples), fields, 1, 0, 5, 0)
    assert entries["images"].shape == images.shape and entries["images"].dtype == torch.uint8
    assert set(entries) == ({"images", "mix", "partner"} if mixup else {"images"})


@pytest.mark.parametrize(("overrides", "sentence"), [
    (["data.rand_augment=2", "data.aug_on=workers"], r"data.aug_on='workers' needs data.loader='two_level'"),
    (["data.mixup=0.2", "data.aug_on=workers", "data.loader=threads"], r"needs data.loader='two_level'"),
    (["data.mixup=0.2", "data.loader=as_found"], r"need uint8 images: take another data.loader than 'as_found'")])
def test_where_it_cannot_be_done_the_recipe_says_so(overrides: list[str], sentence: str) -> None:
    with pytest.raises(LfError, match=sentence):
        recipe("competent", *overrides)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_same_pixels_and_is_never_waited_for() -> None:
    images, fields = pictures(64), DataFields(rand_augment=3, rand_magnitude=15, mixup=0.4)
    on_host = augment_device.apply(torch.from_numpy(images), np.arange(64), fields, 0, 0, 1, 0)
    there = torch.from_numpy(images).cuda()
    augment_device.apply(there, np.arange(64), fields, 0, 0, 1, 0)  # kernels are loaded
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_device = augment_device.apply(there, np.arange(64), fields, 0, 0, 1, 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    difference = (on_device["images"].cpu().int() - on_host["images"].int()).abs()
    assert (difference > 2).float().mean() < 0.005 and difference.float().mean() < 0.05
    assert torch.equal(on_device["mix"].cpu(), on_host["mix"])
    assert torch.equal(on_device["partner"].cpu(), on_host["partner"])
