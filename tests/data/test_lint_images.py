"""Images that can't be read, or that decoders treat differently, found by decoding all of them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lfhelpers.data import images
from lfhelpers.data.lint import Report
from lfhelpers.data.lint.repack import repack
from tests.data.broken_tars import checked, dali, encoded, kinds, noise, pairs, tall, tar
from tests.data.toy_shards import photo

CUT = encoded(noise(), quality=90)[:len(encoded(noise(), quality=90)) // 2]
HTML = b"<html><body>404 Not Found</body></html>"
GIF = encoded(noise().convert("P"), "GIF")


def decoded(path: Path, **options: object) -> Report:
    return checked(path, level="decode", **options)


def rotated(orientation: int) -> bytes:
    """60 x 40 pixels with a red block of 30 x 20 at the top left, and an EXIF turn."""
    picture = np.full((40, 60, 3), 255, dtype=np.uint8)
    picture[:20, :30] = (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(picture), quality=95, exif=exif.tobytes())


def palette() -> Image.Image:
    return noise().quantize(16)


def sixteen(channels: int) -> bytes:
    """A PNG of 16 bits with one channel or three; Pillow can't write the latter, so its header is made here."""
    import struct
    import zlib

    if channels == 1:
        return encoded(Image.fromarray(np.full((6, 8), 30_000, dtype=np.uint16)), "PNG")

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + struct.pack(">24H", *([30_000] * 24))) * 6
    return b"\x89PNG\r\n\x1a\n" + b"".join([chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 6, 16, 2, 0, 0, 0)),
                                            chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")])


TABLE = [
    ("a sound JPEG", photo(0, 0), {}),
    ("4:4:4", encoded(noise(), subsampling=0), {}),
    ("4:2:2", encoded(noise(), subsampling=1), {}),
    ("PNG", encoded(noise(), "PNG"), {}),
    ("WEBP", encoded(noise(), "WEBP"), {}),
    ("upright EXIF", rotated(1), {}),
    ("cut JPEG", CUT, {"unreadable_image": "cut or damaged"}),
    ("cut PNG", encoded(noise(), "PNG")[:5000], {"unreadable_image": "cut or damaged"}),
    ("HTML", HTML, {"unreadable_image": "not an image"}),
    ("zeros", bytes(5000), {"unreadable_image": "not an image"}),
    ("float TIFF", encoded(Image.new("F", (8, 6), 0.5), "TIFF"), {"unreadable_image": "cut or damaged"}),
    ("GIF", GIF, {"gif_image": ""}),
    ("CMYK", encoded(noise().convert("CMYK")), {"cmyk_image": ""}),
    ("16-bit grey PNG", sixteen(1), {"deep_image": "PNG"}),
    ("16-bit RGB PNG", sixteen(3), {"deep_image": "PNG"}),
    ("turned", rotated(6), {"rotated_image": "orientation 6"}),
    ("mirrored", rotated(2), {"rotated_image": "orientation 2"}),
    ("grey", encoded(noise().convert("L")), {"not_rgb_image": "grey"}),
    ("grey PNG", encoded(noise().convert("L"), "PNG"), {"not_rgb_image": "grey"}),
    ("one bit", encoded(noise().convert("1"), "PNG"), {"not_rgb_image": "one bit"}),
    ("palette", encoded(palette(), "PNG"), {"not_rgb_image": "palette"}),
    ("palette with alpha", encoded(palette(), "PNG", transparency=b"\xff\x40"), {"not_rgb_image": "alpha"}),
    ("alpha", encoded(noise().convert("RGBA"), "PNG"), {"not_rgb_image": "alpha"}),
    ("progressive", encoded(noise(), progressive=True), {"progressive_image": ""}),
    ("4:4:0", tall(), {"odd_subsampling": ""}),
    ("progressive and turned", encoded(noise(), progressive=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03"
                                       b"\0\0\0\x01\0\x03\0\0\0\0\0\0"),
     {"rotated_image": "orientation 3", "progressive_image": ""}),
]


@pytest.mark.parametrize(("data", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_odd_images(tmp_path: Path, data: bytes, expected: dict[str, str]) -> None:
    report = decoded(tar(tmp_path / "set.tar", [("a.front.jpg", photo(1, 0)), ("a.wrist.jpg", data), ("a.txt", b"t")]))
    assert kinds(report) == dict.fromkeys(expected, 1)
    for finding in report.findings:
        assert finding.examples[0].startswith("set.tar:a.wrist.jpg")
        assert finding.details == ({expected[finding.kind]: 1} if expected[finding.kind] else {})
    assert report.ok is not bool({"unreadable_image", "gif_image"} & expected.keys())


def test_the_table_is_odd_in_fact() -> None:
    """What the files claim to be, by Pillow's own account; `verify` would have passed the cut one."""
    Image.open(io.BytesIO(CUT)).verify()
    with pytest.raises(OSError, match="truncated"):
        Image.open(io.BytesIO(CUT)).load()
    named = {name: Image.open(io.BytesIO(data)) for name, data, _ in TABLE if name not in ("HTML", "zeros")}
    assert named["CMYK"].mode == "CMYK" and named["16-bit grey PNG"].mode == "I;16"
    assert named["progressive"].info["progressive"] and named["turned"].getexif()[0x0112] == 6
    assert named["4:4:0"].layer[0][1:3] == (1, 2) and named["4:2:2"].layer[0][1:3] == (2, 1)  # type: ignore[attr-defined]


def test_four_bad_images_of_a_hundred(tmp_path: Path) -> None:
    bad = {13: CUT, 40: b"", 41: HTML, 99: GIF}
    members = [(f"{number:03d}.jpg", bad.get(number, photo(number, 0))) for number in range(100)]
    for shard in range(4):
        tar(tmp_path / f"{shard}.tar", members[shard * 25:shard * 25 + 25])
    report = decoded(tmp_path, jobs=2)
    assert kinds(report) == {"empty_members": 1, "unreadable_image": 2, "gif_image": 1}
    named = {example.split(" ")[0] for finding in report.findings for example in finding.examples}
    assert named == {"0.tar:013.jpg", "1.tar:040.jpg", "1.tar:041.jpg", "3.tar:099.jpg"}
    assert checked(tmp_path).count("unreadable_image") == 0  # not without decoding
    made = repack(tmp_path, tmp_path / "out", readers=1, progress=False)
    assert made.samples == 96
    assert made.source["left out"] == {"GIF jpg": 1, "empty jpg": 1, "unreadable jpg": 2}
    kept = (tmp_path / "out" / "keys.txt").read_text().split()
    assert kept == [f"{number // 25}.tar:{number:03d}" for number in range(100) if number not in bad]
    for shard in made.shards:  # what is left, DALI decodes too
        assert len(dali([tmp_path / "out" / shard.name], ["jpg"], "error")) == shard.samples


def test_only_members_that_are_named_images_are_decoded(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", pairs("a", "b", exts=("json", "cls")))
    assert decoded(path).findings == ()


def test_a_turned_image_is_upright_by_the_rule_of_training(tmp_path: Path) -> None:
    report = decoded(tar(tmp_path / "set.tar", [("a.jpg", rotated(6))]))
    assert kinds(report) == {"rotated_image": 1} and report.ok
    upright = np.asarray(images.decode(rotated(6), "here"))
    assert upright.shape == (60, 40, 3) and upright[5, 35, 1] < 30 and upright[5, 5, 1] > 225
