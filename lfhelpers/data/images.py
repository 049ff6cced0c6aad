"""The one rule by which bytes become pixels; every engine on the Pillow path calls these two functions.

Decoding is exact (no scaled decode), orientation is applied, and resizing is antialiased: engines that differ in any of
these train on different data, and a speed-up that changes the data is not one. The scaled decode of libjpeg would save
a third of the time and moves pixels by about two levels of 255. `dali` holds the same rule as DALI graph functions, and
a test compares the two over a table of odd images.

Orientation can't be switched off. A photo's EXIF tag is part of what it shows, and a switch would have to reach Pillow,
libjpeg-turbo, DALI, the importers and the linter alike, or engines would train on differently turned data. Where pixels
must stay as they are stored, as for cameras that are calibrated so, take the tag out of the files before they are
packed, which leaves the pixels alone: `jpegtran -copy none`. `lfhelpers data lint` names the files that have one.
"""

from __future__ import annotations

import io
import re

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lfhelpers.errors import LfError

WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # 16 bits in Pillow's names, which convert() would clip at 255


def decode(data: bytes, where: str) -> Image.Image:
    """An upright RGB image of any file that Pillow reads: alpha dropped, 16 bits scaled to 8, other colours converted.

    The low bits of 16 are rounded in grey and cut off in colours, where DALI rounds: that is one level of 255.
    Raises LfError naming `where`; a cut file is an error, never half an image.
    """
    try:
        image = Image.open(io.BytesIO(data))
        ImageOps.exif_transpose(image, in_place=True)
        return _rgb(image)
    except Exception as error:  # damaged bytes make Pillow's plugins raise almost anything
        reason = re.sub(r" ?<_io\.BytesIO object at 0x[0-9a-f]+>", "", str(error))  # an address tells nobody anything
        raise LfError(f"{where} is no readable image ({len(data)} bytes): {reason}; repair it and pack the shard again."
                      ) from error


def augment(image: Image.Image, box: tuple[float, float, float, float], matrix: NDArray[np.float64] | None, size: int
            ) -> NDArray[np.uint8]:
    """The crop `box` resized to uint8 [size, size, 3], bilinear and antialiased, then its colours by `matrix`.

    At the border of the box the filter sees the pixels beyond it, as in DALI's resize of a region: cutting first would
    copy the frame, and differ there.
    """
    resized = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if matrix is not None:
        resized = resized.convert("RGB", tuple(matrix.ravel().tolist()))
    return np.array(resized)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in WIDE:
        scaled = (np.asarray(image, dtype=np.float64) / 257).round()  # 65535 / 255 = 257
        return Image.fromarray(scaled.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floats, whose range is not known")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != "RGB":
        return image.convert("RGB")
    image.load()
    return image
