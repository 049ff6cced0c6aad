"""Where `size` trusts a file, libjpeg-turbo makes Pillow's pixels of it, bit for bit; all other files are Pillow's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lfhelpers.data import draws, images, turbo
from lfhelpers.errors import LfError
from tests.data.broken_tars import encoded
from tests.data.test_dali_images import DAMAGED, JPEG, READABLE, TABLE
from tests.data.toy_shards import photo

pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

TURNED = {f"jpeg, orientation {turn}" for turn in range(2, 9)} | {"jpeg, orientation big-endian"}
TRUSTED = sorted({name for name in READABLE if name.lower().startswith("jpeg")} - TURNED)
ALL = TABLE | {name: data for name, (data, _) in DAMAGED.items()}


def pillow(data: bytes) -> np.ndarray:
    return np.asarray(images.decode(data, "it"))


def ours(data: bytes, factor: int = 1) -> np.ndarray | None:
    whole = turbo.size(data)
    assert whole is not None
    frame = turbo.decode(data, *whole, factor)
    return None if frame is None else frame[:, :, :3]


@pytest.mark.parametrize("name", TRUSTED)
def test_plain_jpegs_have_pillows_pixels(name: str) -> None:
    found = ours(READABLE[name])
    assert found is not None and np.array_equal(found, pillow(READABLE[name]))


def test_no_other_file_is_trusted() -> None:
    assert sorted(name for name, data in ALL.items() if turbo.size(data)) == TRUSTED


@given(width=st.integers(1, 70), height=st.integers(1, 70), quality=st.integers(1, 100), grey=st.booleans(),
       sampling=st.sampled_from(["4:4:4", "4:2:2", "4:2:0", "4:1:1"]), progressive=st.booleans(),
       restart=st.integers(0, 3), seed=st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_any_plain_jpeg_has_pillows_pixels(width: int, height: int, quality: int, grey: bool, sampling: str,
                                           progressive: bool, restart: int, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise).convert("L" if grey else "RGB")
    data = encoded(image, quality=quality, subsampling=sampling, progressive=progressive, restart_marker_blocks=restart)
    found = ours(data)
    assert turbo.size(data) == (width, height)
    assert found is not None and np.array_equal(found, pillow(data))


@given(st.sampled_from(["jpeg 4:2:0", "jpeg, progressive", "jpeg, grey", "jpeg, restart markers"]), st.data())
@settings(max_examples=300, deadline=None)
def test_of_a_damaged_jpeg_there_are_pillows_pixels_or_none(name: str, data: st.DataObject) -> None:
    file = bytearray(READABLE[name])
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(2, len(file) - 3))] = data.draw(st.integers(0, 255))
    whole = turbo.size(bytes(file))
    frame = turbo.decode(bytes(file), *whole) if whole and whole[0] * whole[1] < 1_000_000 else None
    if frame is not None:
        try:
            expected = pillow(bytes(file))
        except LfError as error:
            raise AssertionError("Pillow refuses what libjpeg-turbo lets pass") from error
        assert np.array_equal(frame[:, :, :3], expected)


def test_a_jpeg_with_a_hole_is_left_to_pillow() -> None:
    middle = len(JPEG) // 2
    cut = JPEG[:middle] + b"\xff\xd9"
    assert turbo.size(cut) == (97, 61) and ours(cut) is None


@pytest.mark.parametrize(("box", "size", "expected"), [
    ((0, 0, 608, 456), 224, 2), ((0, 0, 608, 447), 224, 1), ((0, 0, 447, 608), 224, 1), ((0, 0, 1824, 1026), 224, 4),
    ((0, 0, 1824, 1026), 128, 8), ((0, 0, 1024, 1024), 64, 8), ((10, 10, 90, 80), 224, 1)])
def test_a_frame_shrinks_as_far_as_its_crop_has_the_pixels(box: tuple[int, int, int, int], size: int,
                                                           expected: int) -> None:
    assert turbo.factor(box, size) == expected


@pytest.mark.parametrize(("factor", "shape"), [(2, (231, 321, 3)), (4, (116, 161, 3)), (8, (58, 81, 3))])
def test_a_scaled_frame_rounds_its_sides_up(factor: int, shape: tuple[int, ...]) -> None:
    found = ours(photo(0, 0, 641, 461), factor)
    assert found is not None and found.shape == shape


def test_scaled_pixels_are_near_the_exact_ones_and_in_their_places() -> None:
    data, box = photo(3, 0, 640, 480, 90), draws.crop_box((0.9, 0.1), 640, 480)
    exact = images.augment(images.decode(data, "it"), box, None, 224).astype(int)
    frame = ours(data, 2)
    assert frame is not None
    shrunk = Image.fromarray(frame)
    left, top, right, bottom = (side / 2 for side in box)
    near, moved = (np.abs(images.augment(shrunk, (left - off, top, right - off, bottom), None, 224) - exact).mean()
                   for off in (0, 3))
    assert 0 < near < 3 < moved
