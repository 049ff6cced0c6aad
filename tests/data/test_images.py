"""The decoding rule over a table of odd images."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from lfhelpers.data import images
from lfhelpers.errors import LfError


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def flat(mode: str, colour: object, size: tuple[int, int] = (8, 6)) -> Image.Image:
    return Image.new(mode, size, colour)  # type: ignore[arg-type]


def palette() -> bytes:
    image = flat("P", 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    return encoded(image, "PNG", transparency=b"\xff\x40")


def deep(value: int) -> bytes:
    return encoded(Image.fromarray(np.full((6, 8), value, dtype=np.uint16)), "PNG")


TABLE = [
    ("rgb", encoded(flat("RGB", (200, 100, 50)), "PNG"), (200, 100, 50)),
    ("grey jpeg", encoded(flat("L", 77), "JPEG"), (77, 77, 77)),
    ("one bit", encoded(flat("1", 1), "PNG"), (255, 255, 255)),
    ("grey with alpha", encoded(flat("LA", (90, 10)), "PNG"), (90, 90, 90)),
    ("alpha is dropped, not blended", encoded(flat("RGBA", (200, 100, 50, 0)), "PNG"), (200, 100, 50)),
    ("palette with transparency", palette(), (200, 100, 50)),
    ("16 bits are scaled", deep(257 * 130), (130, 130, 130)),
    ("16 bits, full", deep(65535), (255, 255, 255)),
    ("16 bits, dark", deep(257 * 3), (3, 3, 3)),
    ("webp", encoded(flat("RGB", (200, 100, 50)), "WEBP", lossless=True), (200, 100, 50)),
    ("cmyk", encoded(flat("CMYK", (0, 255, 255, 0)), "JPEG", quality=100), (255, 0, 0)),
]


@pytest.mark.parametrize(("data", "colour"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_every_kind_of_image_becomes_rgb(data: bytes, colour: tuple[int, int, int]) -> None:
    image = images.decode(data, "here")
    assert image.mode == "RGB" and image.size == (8, 6)
    assert abs(np.asarray(image).astype(int) - colour).max() <= 2


def test_a_rotated_photo_is_turned_upright() -> None:
    picture = np.full((40, 60, 3), 255, dtype=np.uint8)
    picture[:20, :30] = (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = encoded(Image.fromarray(picture), "JPEG", quality=95, exif=exif.tobytes())
    upright = np.asarray(images.decode(photo, "here"))
    assert upright.shape == (60, 40, 3)
    assert upright[5, 35, 1] < 30 and upright[5, 5, 1] > 225  # the red block is at the top right now


@pytest.mark.parametrize("data", [
    encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)), "JPEG")[:2000],
    b"", b"<html><body>404</body></html>",
    encoded(flat("P", 1, (64, 64)), "GIF")[:40],
    encoded(flat("F", 0.5), "TIFF"),
], ids=["cut", "empty", "html", "cut gif", "float"])
def test_what_is_no_whole_image_is_an_error_with_its_place(data: bytes) -> None:
    with pytest.raises(LfError, match=r"^shard-00001.tar:000000007:jpg is no readable image \(\d+ bytes\): "):
        images.decode(data, "shard-00001.tar:000000007:jpg")


def test_resizing_averages_what_it_shrinks() -> None:
    stripes = Image.fromarray(np.tile(np.array([0, 255], dtype=np.uint8), (128, 64))).convert("RGB")
    small = images.augment(stripes, (0, 0, 128, 128), None, 16)
    assert small.shape == (16, 16, 3) and small.dtype == np.uint8
    assert abs(small.astype(int) - 127).max() <= 6  # without antialiasing: 0 or 255


def test_the_box_fills_the_result() -> None:
    ramp = np.tile(np.arange(100, dtype=np.uint8)[None, :, None], (50, 1, 3))  # every pixel holds its column
    small = images.augment(Image.fromarray(ramp), (20, 10, 60, 40), None, 10)
    centres = 20 + 4 * (np.arange(10) + 0.5) - 0.5
    assert abs(small[:, :, 0] - centres).max() <= 0.5


def test_colours_are_rounded_and_kept_in_range() -> None:
    matrix = np.array([[1.5, 0, 0, 0], [0, 0.5, 0, 0.3], [0, 0, 1, -300]])
    assert images.augment(flat("RGB", (200, 101, 255)), (0, 0, 8, 6), matrix, 2)[0, 0].tolist() == [255, 51, 0]
