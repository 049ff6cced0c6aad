"""What is odd about an image file: the same full decoding as in training decides whether it can be read at all.

Only a full decode tells: Pillow's `verify` passes a JPEG that was cut in half. It costs what training pays for it, 1 to
2 ms for a 640x480 frame, and is therefore a level of its own.
"""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

from PIL import Image, JpegImagePlugin

from lfhelpers.data import images
from lfhelpers.errors import LfError

ORIENTATION = 0x0112
COMMON = (0, 1, 2)  # Pillow's numbers of 4:4:4, 4:2:2 and 4:2:0, which the hardware decoders know


class Oddity(NamedTuple):
    """A kind of finding, its subdivision, and a reason where there is one."""

    kind: str
    detail: str = ""
    reason: str = ""


def oddities(data: bytes) -> list[Oddity]:
    """All that is odd about one image file; where it can't be used at all, only that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images and odd metadata: the findings are ours
            with Image.open(io.BytesIO(data)) as image:
                if image.format == "GIF":
                    return [Oddity("gif_image")]
                found = _header(data, image)
            images.decode(data, "it")
    except LfError as error:
        return [Oddity("unreadable_image", "cut or damaged", _reason(str(error)))]
    except Exception as error:  # damaged bytes make Pillow's plugins raise almost anything
        what = "not an image" if isinstance(error, Image.UnidentifiedImageError) else "cut or damaged"
        return [Oddity("unreadable_image", what, what if what == "not an image" else str(error))]
    return found


def _header(data: bytes, image: Image.Image) -> list[Oddity]:
    found = []
    deep = image.mode in (*images.WIDE, "F") or (image.format == "PNG" and data[24] == 16)
    if deep:
        found.append(Oddity("deep_image", image.format or ""))
    elif image.mode == "CMYK":
        found.append(Oddity("cmyk_image"))
    elif image.mode != "RGB":
        found.append(Oddity("not_rgb_image", _colours(image)))
    if image.getexif().get(ORIENTATION, 1) != 1:
        found.append(Oddity("rotated_image", f"orientation {image.getexif()[ORIENTATION]}"))
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        if image.info.get("progressive"):
            found.append(Oddity("progressive_image"))
        if image.mode == "RGB" and JpegImagePlugin.get_sampling(image) not in COMMON:
            found.append(Oddity("odd_subsampling"))
    return found


def _colours(image: Image.Image) -> str:
    if "A" in image.mode or "transparency" in image.info:
        return "alpha"
    return {"P": "palette", "L": "grey", "1": "one bit"}.get(image.mode, image.mode)


def _reason(sentence: str) -> str:
    """The cause in the middle of the decoding rule's sentence."""
    return sentence.partition("bytes): ")[2].rpartition("; ")[0] or sentence
