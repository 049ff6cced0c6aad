"""The decoding rule of `images` as DALI graph functions, and the check of which files DALI may be given at all.

DALI's decoders use the libraries that Pillow uses, and the pixels of ordinary files are equal. Of some others it makes
different pixels, dies, or writes out of bounds (two EXIF blocks), without a word. So `prepared` lets through only the
files whose headers are known to be safe, and hands over the rest as the pixels that Pillow sees. The check costs 3 us
an image; what it turns away without need costs time and never pixels. DALI is imported when a graph is built.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from PIL import Image

from lfhelpers.data import images as rule

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

ORIENTATION = 0x0112
_APP1, _APP14, _SOS = 0xE1, 0xEE, 0xDA
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # of all of JPEG's processes
_COMMON_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive; the others are lossless or arithmetic
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_RATIONAL, _SHORT = 5, 3
_SIZES = {1: 1, 2: 1, _SHORT: 2, 4: 4, _RATIONAL: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}  # bytes of EXIF types
_RATIONALS = (0x011A, 0x011B, 0x013E, 0x013F, 0x0211, 0x0214)  # tags that nvImageCodec reads as such, whatever they are


class Prepared(NamedTuple):
    """A file that DALI decodes as Pillow would, and the upright image's width and height in pixels."""

    data: bytes
    width: int
    height: int
    reason: str | None
    """Why `data` is a BMP of Pillow's pixels and not the file itself; None where it is."""


def decoded(encoded: DataNode, device: Literal["cpu", "mixed"], hardware: float = 1.0,
            frame: tuple[int, int] = (0, 0)) -> DataNode:
    """Upright RGB frames, uint8 [H, W, 3], of files that passed `prepared`: the same as images.decode.

    hardware: the share of JPEGs that "mixed" gives to the GPU's JPEG engine. At 0 or 1 an image meets the same decoder
    in every run; in between it depends on what else is in its batch. frame: pixels, wide and high, for which that
    engine's memory is set aside; memory that has to grow waits for all that the GPU has to do, the training's too.
    """
    from nvidia.dali import fn, types

    # Fancy upsampling: nvJPEG would repeat chroma samples where libjpeg interpolates.
    return fn.decoders.image(encoded, device=device, output_type=types.DALIImageType.RGB, adjust_orientation=True,
                             jpeg_fancy_upsampling=True, hw_decoder_load=hardware, preallocate_width_hint=frame[0],
                             preallocate_height_hint=frame[1])


def augmented(frames: DataNode, boxes: DataNode, matrices: DataNode | None, size: int) -> DataNode:
    """images.augment on the device of `frames`: uint8 [size, size, 3].

    boxes: float32 [4] a sample, left, top, right, bottom in pixels; matrices: float32 [3, 4] a sample, None where
    colours stay. Both lie in host memory.
    """
    from nvidia.dali import fn, types

    resized: Any = fn.resize(frames, size=[size, size], interp_type=types.DALIInterpType.INTERP_LINEAR, antialias=True,
                             roi_start=fn.stack(boxes[1], boxes[0]), roi_end=fn.stack(boxes[3], boxes[2]))
    return resized if matrices is None else fn.coord_transform(resized, MT=matrices, dtype=types.DALIDataType.UINT8)


def readable(data: bytes) -> str | None:
    """None where DALI makes Pillow's pixels of the file; else why it must not be given to DALI, from its header alone.

    A file that is cut is never readable, nor is what is no image; damage in the middle of a file isn't seen.
    """
    return _header(data)[2]


def turned(jpeg: bytes) -> bool:
    """Whether a readable JPEG has an EXIF orientation other than upright."""
    return any(marker == _APP1 and body.startswith(b"Exif\0\0") and _orientation(body[6:]) not in (None, 1)
               for marker, body in _segments(jpeg))


def prepared(data: bytes, where: str) -> Prepared:
    """The file itself where it is readable, else a BMP of Pillow's pixels. Raises LfError as images.decode does."""
    width, height, reason = _header(data)
    if reason is None:
        return Prepared(data, width, height, None)
    image, buffer = rule.decode(data, where), io.BytesIO()
    image.save(buffer, "BMP")
    return Prepared(buffer.getvalue(), *image.size, reason)


class _OddError(Exception):
    """The reason for which a file goes to Pillow."""


def _header(data: bytes) -> tuple[int, int, str | None]:
    """(width, height) of the upright image, or a reason."""
    try:
        width, height = _size(data)
        if width * height == 0 or width * height > 2 * (Image.MAX_IMAGE_PIXELS or width * height):
            raise _OddError("size that Pillow refuses")
    except _OddError as odd:
        return 0, 0, str(odd)
    except (struct.error, IndexError):
        return 0, 0, "cut or damaged file"
    return width, height, None


def _size(data: bytes) -> tuple[int, int]:
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith(b"BM"):
        return _bmp(data)
    raise _OddError("GIF" if data.startswith(b"GIF8") else "neither JPEG, PNG, WEBP nor BMP")


def _jpeg(data: bytes) -> tuple[int, int]:
    exifs, frames, adobe, xmp = [], [], -1, False
    for marker, body in _segments(data):
        if marker in _FRAMES:
            frames.append((marker, body))
        elif marker == _APP1 and body.startswith(b"Exif\0\0"):
            exifs.append(body[6:])
        elif marker == _APP1 and body.startswith(_XMP):
            xmp = xmp or b"tiff:Orientation" in body
        elif marker == _APP14 and body.startswith(b"Adobe"):
            adobe = body[11]
    if len(exifs) > 1:
        raise _OddError("JPEG with several EXIF blocks")
    orientation = _orientation(exifs[0]) if exifs else None
    if orientation is None and xmp:
        raise _OddError("JPEG turned by XMP")
    if len(frames) != 1:
        raise _OddError("JPEG of a rare kind")
    if data[-2:] != b"\xff\xd9":
        raise _OddError("JPEG without an end mark at its end")
    width, height = _frame(*frames[0], adobe)
    return (height, width) if orientation in (5, 6, 7, 8) else (width, height)


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and body of all segments before the first scan."""
    position = 2
    while True:
        if data[position] != 0xFF:
            raise _OddError("JPEG with bytes between its segments")
        marker = data[position + 1]
        if marker == _SOS:
            return
        if marker != 0xFF:  # which is a fill byte
            end = position + 2 + struct.unpack_from(">H", data, position + 2)[0]
            yield marker, data[position + 4:end]
            position = end
        else:
            position += 1


def _frame(marker: int, body: bytes, adobe: int) -> tuple[int, int]:
    """Width and height. Of CMYK, DALI and Pillow invert different files; nvImageCodec notes RGB as YCbCr."""
    depth, height, width, components = struct.unpack_from(">BHHB", body)
    if marker not in _COMMON_FRAMES or depth != 8 or components not in (1, 3, 4):
        raise _OddError("JPEG of a rare kind")
    if components == 4:
        raise _OddError("CMYK JPEG")
    if components == 3 and (adobe == 0 or body[6:15:3] == b"RGB"):
        raise _OddError("JPEG of RGB")
    return width, height


def _orientation(exif: bytes) -> int | None:
    """The EXIF orientation, None without one. DALI loses it where any other tag isn't as it should be."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        raise _OddError("odd EXIF")
    start = struct.unpack_from(order + "I", exif, 4)[0]
    found, sound = None, True
    for at in range(start + 2, start + 2 + 12 * struct.unpack_from(order + "H", exif, start)[0], 12):
        tag, kind, count, value = struct.unpack_from(order + "HHII", exif, at)
        size = count * _SIZES.get(kind, len(exif))
        sound = sound and (size <= 4 or value + size <= len(exif)) and (kind == _RATIONAL or tag not in _RATIONALS)
        if tag == ORIENTATION:
            sound = sound and (kind, count, found) == (_SHORT, 1, None)
            found = struct.unpack_from(order + "H", exif, at + 8)[0]
    if found is not None and not sound:
        raise _OddError("odd EXIF")
    return found


def _png(data: bytes) -> tuple[int, int]:
    position, kind = 8, b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, position)
        text = data[position + 8:position + 30] if kind in (b"tEXt", b"zTXt", b"iTXt") else b""
        if kind == b"eXIf" or text.startswith((b"XML:com.adobe.xmp", b"Raw profile type exif")):
            raise _OddError("PNG with EXIF or XMP")
        if kind == b"acTL":
            raise _OddError("animation")
        position += 12 + length
    if position > len(data):
        raise _OddError("cut or damaged file")
    return struct.unpack_from(">II", data, 16)


def _webp(data: bytes) -> tuple[int, int]:
    if struct.unpack_from("<I", data, 4)[0] + 8 > len(data):
        raise _OddError("cut or damaged file")
    kind = data[12:16]
    flags = data[20] if kind == b"VP8X" else 0
    if flags & 0x02:
        raise _OddError("animation")
    # On its way to EXIF nvImageCodec forgets that chunks are padded, and dies where none follows; it skips XMP.
    if flags & 0x0C or b"EXIF" in data or b"XMP " in data:
        raise _OddError("WEBP with EXIF or XMP")
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        sides = int.from_bytes(data[21:25], "little")
        return 1 + (sides & 0x3FFF), 1 + (sides >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _bmp(data: bytes) -> tuple[int, int]:
    start, header, width, height, _, bits, packing = struct.unpack_from("<IIiiHHI", data, 10)
    if header not in (40, 108, 124) or bits not in (1, 4, 8, 24, 32) or packing or width < 0:
        raise _OddError("BMP of a rare kind")
    if start + (width * bits + 31) // 32 * 4 * abs(height) > len(data):
        raise _OddError("cut or damaged file")
    return width, abs(height)
