"""Case 11's last clause: pixels that must stay as the camera stored them lose their EXIF tag, and nothing else."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from lfhelpers.data import images, turbo

TAG = b"\xff\xe1"
"""The marker of the segment in which a JPEG has its EXIF."""


@pytest.fixture
def turned() -> bytes:
    """60 x 40 pixels with a red block of 30 x 20 at the top left, said to be shown a quarter turn on."""
    picture = np.full((40, 60, 3), 255, dtype=np.uint8)
    picture[:20, :30] = (255, 0, 0)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(picture).save(file, "JPEG", quality=95, exif=exif.tobytes())
    return file.getvalue()


def untagged(jpeg: bytes) -> bytes:
    """Without the segment, as `jpegtran -copy none` leaves it."""
    start = jpeg.index(TAG)
    return jpeg[:start] + jpeg[start + 2 + int.from_bytes(jpeg[start + 2:start + 4], "big"):]


def test_without_its_tag_a_picture_keeps_its_stored_pixels(turned: bytes) -> None:
    assert images.decode(turned, "here").size == (40, 60)
    kept = np.asarray(images.decode(untagged(turned), "here"))
    assert kept.shape == (40, 60, 3) and kept[5, 5, 1] < 30 and kept[5, 55, 1] > 225
    assert (kept == np.asarray(Image.open(io.BytesIO(turned)))).all(), "the very pixels that bare Pillow reads"


def test_the_fast_decoder_leaves_a_tagged_picture_to_pillow_and_takes_the_other(turned: bytes) -> None:
    assert turbo.size(turned) is None and turbo.size(untagged(turned)) == (60, 40)
