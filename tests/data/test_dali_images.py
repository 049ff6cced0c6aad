"""The decoding rule over a table of odd images: DALI makes Pillow's pixels of a file, or it doesn't get the file."""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from lfhelpers.data import dali, draws, images
from lfhelpers.errors import LfError
from tests.data.broken_tars import encoded
from tests.data.toy_shards import photo

pytestmark = pytest.mark.filterwarnings("ignore:::PIL")  # of broken EXIF and of sizes that damage made large

Pixels = NDArray[np.uint8]
SIZES = (224, 56)
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def picture(width: int = 97, height: int = 61) -> Image.Image:
    return Image.open(io.BytesIO(photo(1, 0, width, height, 95))).convert("RGB")


def tiff(*entries: tuple[int, int, int, int], order: str = "<") -> bytes:
    """An EXIF block of (tag, type, count, value) entries."""
    values = [struct.pack(order + "HH", value, 0) if kind == 3 else struct.pack(order + "I", value)
              for _, kind, _, value in entries]
    heads = [struct.pack(order + "HHI", *entry[:3]) for entry in entries]
    return ((b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, len(entries))
            + b"".join(map(bytes.__add__, heads, values)) + bytes(4))


def turned(orientation: int) -> bytes:
    return b"Exif\0\0" + tiff((0x0112, 3, 1, orientation))


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(pixels: NDArray[np.uint16], colours: int) -> bytes:
    """A PNG of 16 bits a channel, which Pillow doesn't write in colour."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


RGB = picture()
GREY, PALETTE, CMYK = RGB.convert("L"), RGB.quantize(32), RGB.convert("CMYK")
FADE = np.tile(np.linspace(0, 255, 97).astype(np.uint8), (61, 1))
RGBA = Image.fromarray(np.dstack([np.asarray(RGB), FADE]))
DEEP = np.asarray(RGB).astype(np.uint16) * 256 + 200  # dark values round up
JPEG, PNG, WEBP = encoded(RGB), encoded(RGB, "PNG"), encoded(RGBA, "WEBP", quality=90)

READABLE: dict[str, bytes] = {
    **{f"jpeg {sampling}": encoded(RGB, subsampling=sampling) for sampling in ("4:2:0", "4:2:2", "4:4:4", "4:1:1")},
    "jpeg, progressive": encoded(RGB, progressive=True),
    "jpeg, grey": encoded(GREY),
    "jpeg, restart markers": encoded(RGB, restart_marker_blocks=2),
    "jpeg, fill bytes": JPEG[:20] + b"\xff\xff" + JPEG[20:],
    "jpeg, 640x480": photo(2, 0, 640, 480, 90),
    **{f"jpeg, orientation {turn}": encoded(RGB, exif=turned(turn)) for turn in range(1, 9)},
    "jpeg, orientation big-endian": encoded(RGB, exif=b"Exif\0\0" + tiff((0x0112, 3, 1, 8), order=">")),
    "jpeg, EXIF overrules XMP": encoded(RGB, exif=turned(1), xmp=XMP.encode()),
    "png": PNG,
    "png, grey": encoded(GREY, "PNG"),
    "png, 1 bit": encoded(RGB.convert("1"), "PNG"),
    "png, palette": encoded(PALETTE, "PNG"),
    "png, palette, one colour transparent": encoded(PALETTE, "PNG", transparency=3),
    "png, palette with alpha": encoded(PALETTE, "PNG", transparency=bytes(range(0, 256, 8))),
    "png, RGBA": encoded(RGBA, "PNG"),
    "png, LA": encoded(RGBA.convert("LA"), "PNG"),
    "png, one colour transparent": encoded(RGB, "PNG", transparency=RGB.getpixel((3, 3))),
    "png, 16 bit RGB": png(DEEP, 2),
    "png, 16 bit RGBA": png(np.dstack([DEEP, FADE.astype(np.uint16) * 257]), 6),
    "png, 16 bit grey": encoded(Image.fromarray(DEEP[:, :, 0]), "PNG"),
    "png, gamma": PNG[:33] + chunk(b"gAMA", struct.pack(">I", 100000)) + PNG[33:],
    "webp": encoded(RGB, "WEBP", quality=90),
    "webp, lossless": encoded(RGB, "WEBP", lossless=True),
    "webp, alpha": WEBP,
    "bmp": encoded(RGB, "BMP"),
    "bmp, grey": encoded(GREY, "BMP"),
    "bmp, palette": encoded(PALETTE, "BMP"),
    "bmp, 1 bit": encoded(RGB.convert("1"), "BMP"),
    "bmp, 32 bit": encoded(RGBA, "BMP"),
    **{f"{kind}, {width}x{height}": encoded(picture(width, height), kind)
       for width, height in ((1, 1), (3, 2), (2000, 3), (3, 2000), (101, 77)) for kind in ("JPEG", "PNG")},
}
ROUTED: dict[str, tuple[bytes, str]] = {
    "gif": (encoded(RGB, "GIF"), "GIF"),
    "tiff": (encoded(RGB, "TIFF"), "neither JPEG, PNG, WEBP nor BMP"),
    "jpeg, CMYK": (encoded(CMYK), "CMYK JPEG"),
    "jpeg, CMYK without Adobe's marker": (encoded(CMYK).replace(b"\xff\xee", b"\xff\xef"), "CMYK JPEG"),
    "jpeg, RGB": (encoded(RGB, keep_rgb=True), "JPEG of RGB"),
    "jpeg, RGB by Adobe's marker": (JPEG[:20] + segment(0xEE, b"Adobe\0\x64" + bytes(5)) + JPEG[20:], "JPEG of RGB"),
    "jpeg, two EXIF blocks": (JPEG[:20] + segment(0xE1, turned(6)) + segment(0xE1, turned(3)) + JPEG[20:],
                              "JPEG with several EXIF blocks"),
    "jpeg, orientation of a wrong type": (encoded(RGB, exif=b"Exif\0\0" + tiff((0x0112, 4, 1, 6), order=">")),
                                          "odd EXIF"),
    "jpeg, orientation beside a broken tag": (encoded(RGB, exif=b"Exif\0\0" + tiff(
        (0x010F, 2, 99, 5000), (0x0112, 3, 1, 6))), "odd EXIF"),
    "jpeg, turned by XMP": (encoded(RGB, xmp=XMP.encode()), "JPEG turned by XMP"),
    "jpeg, more behind its end": (JPEG + b"trailer", "JPEG without an end mark at its end"),
    "png, EXIF": (encoded(RGB, "PNG", exif=turned(6)), "PNG with EXIF or XMP"),
    "png, turned by XMP": (PNG[:33] + chunk(b"iTXt", b"XML:com.adobe.xmp" + bytes(5) + XMP.encode()) + PNG[33:],
                           "PNG with EXIF or XMP"),
    "png, moving": (encoded(RGB, "PNG", save_all=True, append_images=[RGB.rotate(180)]), "animation"),
    "webp, EXIF": (encoded(RGB, "WEBP", exif=turned(6)), "WEBP with EXIF or XMP"),
    "webp, EXIF promised and absent": (WEBP[:20] + b"\x08" + WEBP[21:], "WEBP with EXIF or XMP"),
    "webp, turned by XMP": (encoded(RGB, "WEBP", xmp=XMP.encode()), "WEBP with EXIF or XMP"),
    "webp, moving": (encoded(RGB, "WEBP", save_all=True, append_images=[RGB.rotate(180)]), "animation"),
    "bmp, run lengths": (b"BM" + struct.pack("<IHHIIiiHHIIiiII", 72, 0, 0, 62, 40, 2, 2, 1, 8, 1, 10, 0, 0, 2, 2)
                         + bytes([0, 0, 0, 0, 9, 99, 200, 0, 2, 1, 0, 0, 2, 0, 0, 0, 0, 1]), "BMP of a rare kind"),
    "bmp, 16 bit": (b"BM" + struct.pack("<IHHIIiiHHIIiiII", 182, 0, 0, 54, 40, 8, 8, 1, 16, 0, 128, 0, 0, 0, 0)
                    + bytes(range(128)), "BMP of a rare kind"),
}
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "neither JPEG, PNG, WEBP nor BMP"),
    "html": (b"<html><body>404</body></html>", "neither JPEG, PNG, WEBP nor BMP"),
    "jpeg, half": (JPEG[:len(JPEG) // 2], "JPEG without an end mark at its end"),
    "jpeg, header": (JPEG[:100], "cut or damaged file"),
    "jpeg, no height": (JPEG.replace(struct.pack(">HH", 61, 97), struct.pack(">HH", 0, 97)),
                        "size that Pillow refuses"),
    "png, half": (PNG[:len(PNG) // 2], "cut or damaged file"),
    "png, huge": (PNG[:16] + struct.pack(">II", 40000, 40000) + PNG[24:], "size that Pillow refuses"),
    "webp, half": (READABLE["webp"][:500], "cut or damaged file"),
    "bmp, half": (READABLE["bmp"][:5000], "cut or damaged file"),
}
TABLE = {**READABLE, **{name: data for name, (data, _) in ROUTED.items()}}


class Views(NamedTuple):
    """What became of one file: the whole frame, and one crop in each of SIZES with its colours changed."""

    frame: Pixels
    crops: tuple[Pixels, ...]


def by_pillow(data: bytes, draw: draws.Draw) -> Views:
    image = images.decode(data, "it")
    box = draws.crop_box(draw.offset, *image.size)
    return Views(np.asarray(image), tuple(images.augment(image, box, draw.matrix, size) for size in SIZES))


def run(graph: Callable[[Callable[[list[Any]], Any]], tuple[Any, ...]], count: int, gpu: bool = False) -> list[Any]:
    """The outputs of a DALI graph over one batch; the graph gets a function that feeds it one array a sample."""
    nvidia = pytest.importorskip("nvidia.dali", reason="DALI is not installed (Linux x86-64 only)")

    @nvidia.pipeline_def(batch_size=count, num_threads=2, device_id=0 if gpu else None, prefetch_queue_depth=1)
    def pipeline() -> tuple[Any, ...]:
        return graph(lambda arrays: nvidia.fn.external_source(source=lambda: arrays, batch=True))

    outputs = [(output.as_cpu() if gpu else output) for output in pipeline().run()]
    return [tuple(np.array(output.at(sample)) for output in outputs) for sample in range(count)]


def by_dali(files: Mapping[str, bytes], draw: Mapping[str, draws.Draw], device: Literal["cpu", "mixed"]
            ) -> dict[str, Views]:
    """All files in one batch, each with its own box and colours, through `prepared`."""
    prepared = {name: dali.prepared(data, name) for name, data in files.items()}
    boxes = [np.array(draws.crop_box(draw[name].offset, *file[1:3]), np.float32) for name, file in prepared.items()]
    matrices = [np.array(draw[name].matrix, np.float32) for name in files]

    def graph(feed: Callable[[list[Any]], Any]) -> tuple[Any, ...]:
        frames = dali.decoded(feed([np.frombuffer(file.data, np.uint8) for file in prepared.values()]), device)
        places, colours = feed(boxes), feed(matrices)
        return frames, *(dali.augmented(frames, places, colours, size) for size in SIZES)

    views = run(graph, len(files), device == "mixed")
    return {name: Views(frame, tuple(crops)) for name, (frame, *crops) in zip(files, views, strict=True)}


DRAWS = dict(zip(TABLE, draws.draw(0, 0, np.arange(len(TABLE))), strict=True))


@pytest.fixture(scope="module")
def on_cpu() -> dict[str, Views]:
    return by_dali(TABLE, DRAWS, "cpu")


def differences(left: Views, right: Views) -> list[tuple[float, int]]:
    """Mean and largest difference of the frame and of each crop. The shapes are equal."""
    assert left.frame.shape == right.frame.shape and left.frame.dtype == right.frame.dtype == np.uint8
    assert [crop.shape for crop in left.crops] == [crop.shape for crop in right.crops] == [(s, s, 3) for s in SIZES]
    pairs = [(left.frame, right.frame), *zip(left.crops, right.crops, strict=True)]
    apart = [np.abs(one.astype(int) - other) for one, other in pairs]
    return [(float(gap.mean()), int(gap.max())) for gap in apart]


@pytest.mark.parametrize("name", TABLE)
def test_dali_on_the_cpu_makes_pillows_pixels_of_every_file(on_cpu: dict[str, Views], name: str) -> None:
    frame, *crops = differences(by_pillow(TABLE[name], DRAWS[name]), on_cpu[name])
    assert frame[0] < 2 and all(crop[0] < 2 for crop in crops)  # what any DALI must hold; the tested one holds more:
    assert frame[1] <= ("16 bit RGB" in name)
    assert all(mean < 0.5 and most <= 6 for mean, most in crops)


@pytest.mark.gpu
def test_dali_on_the_gpu_makes_pillows_pixels_of_every_file() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("DALI's mixed backend decodes on a CUDA device, and this machine has none")
    apart = {name: differences(by_pillow(TABLE[name], DRAWS[name]), views)
             for name, views in by_dali(TABLE, DRAWS, "mixed").items()}
    print("\n".join(f"{name}: {gaps}" for name, gaps in apart.items()))
    # The engine smooths no chroma across an image that is narrower than one block of it.
    most = {name: 4 if any(side < 8 for side in Image.open(io.BytesIO(TABLE[name])).size) else 2 for name in apart}
    assert {name: gaps for name, gaps in apart.items() if max(mean for mean, _ in gaps) >= most[name]} == {}


@pytest.mark.parametrize("name", READABLE)
def test_a_common_file_goes_to_dali_as_it_is(name: str) -> None:
    upright = images.decode(READABLE[name], "it").size
    assert dali.readable(READABLE[name]) is None
    assert dali.prepared(READABLE[name], "it") == (READABLE[name], *upright, None)


@pytest.mark.parametrize("name", ROUTED)
def test_what_dali_may_misread_goes_there_as_pillows_pixels(name: str) -> None:
    data, reason = ROUTED[name]
    file, image = dali.prepared(data, "it"), images.decode(data, "it")
    assert dali.readable(data) == file.reason == reason
    assert dali.readable(file.data) is None and (file.width, file.height) == image.size
    assert images.decode(file.data, "it").tobytes() == image.tobytes()


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_never_reaches_dali(name: str) -> None:
    data, reason = DAMAGED[name]
    assert dali.readable(data) == reason
    with pytest.raises(LfError, match=r"^shard-00001.tar:000000007:jpg is no readable image \(\d+ bytes\): "):
        dali.prepared(data, "shard-00001.tar:000000007:jpg")


@given(st.sampled_from(sorted(READABLE)), st.data())
@settings(max_examples=200, deadline=None)
def test_no_part_of_a_file_is_readable(name: str, data: st.DataObject) -> None:
    whole = READABLE[name]
    assert dali.readable(whole[:data.draw(st.integers(0, len(whole) - 1))])


@given(st.sampled_from(sorted(READABLE)), st.data())
@settings(max_examples=200, deadline=None)
def test_a_header_of_any_bytes_is_refused_or_gives_pillows_size(name: str, data: st.DataObject) -> None:
    file = bytearray(READABLE[name])
    for _ in range(2):
        file[data.draw(st.integers(0, min(len(file), 200) - 1))] = data.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(LfError):  # what only a full decoding finds
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
        if dali.readable(bytes(file)) is None:
            assert images.decode(bytes(file), "it").size == dali.prepared(bytes(file), "it")[1:3]


@pytest.mark.parametrize("name", ["jpeg, turned by XMP", "png, turned by XMP", "webp, turned by XMP",
                                  "jpeg, orientation of a wrong type", "jpeg, orientation beside a broken tag"])
def test_why_these_are_routed_dali_does_not_turn_them(name: str) -> None:
    data = TABLE[name]
    [(frame,)] = run(lambda feed: (dali.decoded(feed([np.frombuffer(data, np.uint8)]), "cpu"),), 1)
    assert frame.shape == (61, 97, 3)
    assert images.decode(data, "it").size == (61, 97)  # width and height: upright


def test_why_cmyk_is_routed_dali_inverts_other_files_than_pillow() -> None:
    data = TABLE["jpeg, CMYK without Adobe's marker"]
    [(frame,)] = run(lambda feed: (dali.decoded(feed([np.frombuffer(data, np.uint8)]), "cpu"),), 1)
    assert np.abs(frame.astype(int) - np.asarray(images.decode(data, "it"))).mean() > 50


@pytest.mark.parametrize("name", ["gif", "bmp, 16 bit", "webp, EXIF promised and absent"])
def test_why_these_are_routed_dali_dies_of_them(name: str) -> None:
    data = TABLE[name]
    with pytest.raises(RuntimeError, match=r"decoders\.image"):
        run(lambda feed: (dali.decoded(feed([np.frombuffer(data, np.uint8)]), "cpu"),), 1)


@pytest.mark.parametrize("size", SIZES)
def test_at_its_border_a_box_sees_what_lies_beyond_in_both(size: int) -> None:
    """Cropping first would be up to 86 of 255 away at the border of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (61, 97, 3), dtype=np.uint8)
    box = (20, 10, 60, 50)

    def graph(feed: Callable[[list[Any]], Any]) -> tuple[Any, ...]:
        return (dali.augmented(feed([noise]), feed([np.array(box, np.float32)]), None, size),)

    [(crop,)] = run(graph, 1)
    expected = images.augment(Image.fromarray(noise), box, None, size)
    assert np.abs(crop.astype(int) - expected).max() <= 1
    cropped = Image.fromarray(noise).crop(box).resize((size, size), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(cropped).astype(int) - expected).max() > 10


def test_importing_it_does_not_import_dali() -> None:
    code = "import sys, lfhelpers.data.dali; print([name for name in sys.modules if name.startswith('nvidia')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
