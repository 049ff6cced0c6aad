"""Draws are a function of (seed, epoch, sample, operation), spread as they should be, and mean what DALI means."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lfhelpers.data import draws, images


@pytest.mark.parametrize(("counter", "key", "expected"), [  # known answers of Random123, the generator's reference
    ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0),
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
])
def test_philox_gives_the_known_answers(counter: list[int], key: tuple[int, int], expected: list[int]) -> None:
    assert draws.philox(np.array([counter], dtype=np.uint64).T, key)[:, 0].tolist() == expected


def test_a_draw_does_not_depend_on_the_batch_around_it() -> None:
    ids = np.arange(50)
    together = draws.draw(7, 2, ids)
    for index in (0, 13, 49):
        (alone,) = draws.draw(7, 2, ids[index:index + 1])
        assert alone.offset == together[index].offset
        assert np.array_equal(alone.matrix, together[index].matrix)


def test_every_part_of_the_key_changes_the_draw() -> None:
    base = draws.uniform(1, 1, np.arange(200), draws.CROP)
    others = [draws.uniform(2, 1, np.arange(200), draws.CROP), draws.uniform(1, 2, np.arange(200), draws.CROP),
              draws.uniform(1, 1, np.arange(200), draws.JITTER), draws.uniform(1, 1, np.arange(200, 400), draws.CROP),
              draws.uniform(1 + 2**40, 1, np.arange(200), draws.CROP)]
    for other in others:
        assert not (base == other).any()
        assert abs(np.corrcoef(base.ravel(), other.ravel())[0, 1]) < 0.12  # 3.4 deviations of 800 independent pairs


def test_uniforms_fill_their_range_evenly() -> None:
    values = draws.uniform(0, 0, np.arange(20_000), draws.CROP)
    assert values.min() >= 0 and values.max() < 1
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert abs(counts / counts.mean() - 1).max() < 0.08
    assert abs(np.corrcoef(values.T) - np.eye(4)).max() < 0.03


@pytest.mark.parametrize(("width", "height"), [(640, 480), (96, 72), (21, 20), (1, 1)])
def test_crops_reach_every_place_and_never_leave_the_image(width: int, height: int) -> None:
    offsets = [(x, y) for x in np.linspace(0, 1, 400, endpoint=False) for y in (0.0, 0.999999)]
    boxes = [draws.crop_box(offset, width, height) for offset in offsets]
    size = round(0.95 * width), round(0.95 * height)
    assert {(right - left, bottom - top) for left, top, right, bottom in boxes} == {size}
    assert {box[0] for box in boxes} == set(range(width - size[0] + 1))
    assert max(box[3] for box in boxes) == height and min(box[1] for box in boxes) == 0


def test_the_centre_crop_is_in_the_centre() -> None:
    assert draws.crop_box(draws.CENTRE.offset, 640, 480) == (16, 12, 624, 468)


def test_colours_stay_where_nothing_is_drawn() -> None:
    (matrix,) = draws.colour_matrices(np.full((1, 4), 0.5))
    assert np.allclose(matrix, np.eye(3, 4), atol=1e-12)


@pytest.mark.parametrize("uniforms", [
    [0.9, 0.5, 0.5, 0.5], [0.5, 0.1, 0.5, 0.5], [0.5, 0.5, 0.95, 0.5], [0.5, 0.5, 0.5, 0.99], [0.1, 0.8, 0.2, 0.1]])
def test_the_colour_matrix_does_what_color_twist_of_dali_does(uniforms: list[float]) -> None:
    dali = pytest.importorskip("nvidia.dali", reason="DALI is not installed (Linux x86-64 only)")
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def twisted():  # type: ignore[no-untyped-def]
        b, c, s, h = (2 * value - 1 for value in uniforms)
        return dali.fn.color_twist(dali.types.Constant(pixels), brightness=1 + 0.3 * b, contrast=1 + 0.4 * c,
                                   saturation=1 + 0.5 * s, hue=360 * 0.08 * h)

    theirs = np.asarray(twisted().run()[0].as_array())[0].astype(int)
    (matrix,) = draws.colour_matrices(np.array([uniforms]))
    ours = images.augment(Image.fromarray(pixels), (0, 0, 16, 16), matrix, 16).astype(int)
    assert abs(theirs - pixels).max() > 20
    assert abs(ours - theirs).max() <= 1
