"""JPEGs decoded by libjpeg-turbo itself: Pillow's pixels without its copies, or a half-size decode on request.

Pillow decodes with the same library, so the pixels of ordinary files are equal to the last bit, and `size` lets only
those through: 8 bits, grey or YCbCr, upright, not cut. Everything else, and every file that libjpeg-turbo complains
of, is Pillow's to decode or to refuse, so one rule decides which files are good.

Scaled decoding makes other pixels: the library leaves out the high frequencies of each 8x8 block instead of filtering
what it has decoded. At 640x480 to 224x224 they lie one or two levels of 255 from the rule's on average. That is small
for training and too much for comparing, so it is asked for by name, and evaluation never uses it: a model trained on
scaled pixels is still judged on the exact ones.
"""

from __future__ import annotations

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from lfhelpers.data import dali

FACTORS = (8, 4, 2)  # libjpeg also has 3/8 and the like, whose transforms aren't vectorised: slower than a full decode


def size(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a JPEG whose pixels `decode` may be trusted with; None for every other file."""
    if not data.startswith(b"\xff\xd8\xff") or dali.readable(data) is not None or dali.turned(data):
        return None
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return width, height


def factor(box: tuple[int, int, int, int], least: int) -> int:
    """The largest of 1, 2, 4 and 8 by which a frame may shrink while `box` still has `least` pixels a side."""
    left, top, right, bottom = box
    return next((factor for factor in FACTORS if min(right - left, bottom - top) >= factor * least), 1)


def decode(data: bytes, width: int, height: int, factor: int = 1) -> NDArray[np.uint8] | None:
    """RGBX of a JPEG of that size, uint8 [H, W, 4], sides divided by `factor` and rounded up; None where it is damaged.

    With factor 1 its pixels are those of images.decode, and X is anything. Releases the interpreter while it decodes.
    """
    high, wide = -(-height // factor), -(-width // factor)
    try:
        frame = simplejpeg.decode_jpeg(data, "RGBX", min_height=high, min_width=wide)
    except ValueError:
        return None
    return frame if frame.shape == (high, wide, 4) else None
