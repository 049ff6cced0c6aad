"""Indexes and manifests that don't fit the tars beside them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from lfhelpers.data import Manifest
from lfhelpers.data.lint import rebuild_index
from lfhelpers.data.lint.repack import repack
from lfhelpers.errors import LfError
from tests.data.broken_tars import checked, dali, edited, four, kinds, pairs, tar


def indexed(folder: Path) -> Path:
    path = tar(folder / "set.tar", pairs("a", "b", "c"))
    rebuild_index(path)
    return path


def test_an_index_that_fits(tmp_path: Path) -> None:
    wds2idx = pytest.importorskip("wds2idx", reason="DALI is not installed (Linux x86-64 only)")
    path = indexed(tmp_path)
    with wds2idx.IndexCreator(str(path), str(tmp_path / "theirs"), verbose=False) as creator:
        creator.create_index()
    assert path.with_suffix(".idx").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert checked(path).findings == ()


def test_an_index_older_than_its_tar(tmp_path: Path) -> None:
    path = indexed(tmp_path)
    os.utime(path.with_suffix(".idx"), (1, 1))
    report = checked(path)
    assert kinds(report) == {"index_old": 1} and report.ok
    assert report.findings[0].examples == ("set.idx is older than its tar",)


@pytest.mark.parametrize(("change", "words"), [
    (lambda text: text.replace("512", "1024", 1), "doesn't list a.jpg with 5 bytes at byte 512"),
    (lambda text: text.replace("txt 1536 5", "txt 1536 6"), "doesn't list a.txt with 5 bytes at byte 1536"),
    (lambda text: "v1.2 2\n" + "\n".join(text.split("\n")[1:3]) + "\n", "doesn't list c.jpg"),
    (lambda text: text.replace("v1.2 3", "v1.2 4") + "jpg 9728 5 d.jpg\n", "lists data at byte 9728"),
    (lambda text: text[:-20], "doesn't list c.txt"),
    (lambda text: text.replace("v1.2 3", "v1.2 9"), "is no index that DALI knows: its head is 'v1.2 9', and it has 3"),
    (lambda text: text.replace("v1.2", "v9.9"), "is no index that DALI knows"),
    (lambda text: "", "is no index that DALI knows"),
])
def test_an_index_of_another_tar_is_found_and_rebuilt(tmp_path: Path, change: Callable[[str], str], words: str) -> None:
    path = indexed(tmp_path)
    index = path.with_suffix(".idx")
    sound = index.read_text()
    index.write_text(change(sound))
    report = checked(path)
    assert kinds(report) == {"index_mismatch": 1} and not report.ok
    assert report.findings[0].examples[0].startswith(f"set.idx {words}")
    assert rebuild_index(path).read_text() == sound and checked(path).findings == ()


def test_dalis_own_tool_misplaces_long_names(tmp_path: Path) -> None:
    wds2idx = pytest.importorskip("wds2idx", reason="DALI is not installed (Linux x86-64 only)")
    key = "d" * 80 + "/" + "k" * 60
    path = tar(tmp_path / "set.tar", [(f"{key}.jpg", b"image"), (f"{key}.txt", b"text")])
    with wds2idx.IndexCreator(str(path), str(path.with_suffix(".idx")), verbose=False) as creator:
        creator.create_index()
    assert dali([path], ["jpg", "txt"]) == [(b"image", b"text")]
    assert dali([path], ["jpg", "txt"], indexed=True) == [(b"ddddd", b"dddd")]  # the name's own header
    assert kinds(checked(path)) == {"index_mismatch": 1}
    rebuild_index(path)
    assert dali([path], ["jpg", "txt"], indexed=True) == [(b"image", b"text")] and checked(path).findings == ()


def test_no_index_is_made_of_a_cut_tar(tmp_path: Path) -> None:
    path = edited(four(tmp_path / "cut.tar"), lambda data: data[:14_000])
    with pytest.raises(LfError, match=r"cut.tar is cut inside 003.bin.*; an index of it would be wrong: copy it again"):
        rebuild_index(path)
    assert not path.with_suffix(".idx").exists()


def test_a_flipped_bit_is_named(copied: Path) -> None:
    dataset = Manifest.load(copied)
    places = [(3, 1), (20, 2)]  # sample 3's wrist.jpg, sample 20's number
    for index, column in places:
        shard = copied / dataset.shards[dataset.rows.shard[index]].name
        edited(shard, lambda data, at=int(dataset.rows.offset[index, column]): data.__setitem__(at, data[at] ^ 1))
    report = checked(copied)
    assert kinds(report) == {"checksum_differs": 2, "index_old": 2}
    assert report.findings[0].examples == ("shard-00000.tar:000000003.wrist.jpg", "shard-00002.tar:000000020.number")
    assert kinds(checked(copied, checksums=False)) == {"index_old": 2}
    assert kinds(checked(copied / "shard-00002.tar")) == {"checksum_differs": 1, "index_old": 1}
    made = repack(copied, copied.with_name("out"), decode=False, readers=1, progress=False)
    assert made.samples == dataset.samples - 2
    assert made.source["left out"] == {"damaged number": 1, "damaged wrist.jpg": 1}


def test_a_flipped_bit_in_a_header_or_in_padding(copied: Path) -> None:
    dataset = Manifest.load(copied)
    behind = int(dataset.rows.offset[10, 2]) + 8  # a member of 8 bytes fills up a block of 512
    edited(copied / "shard-00001.tar", lambda data: data.__setitem__(behind, 1))
    report = checked(copied)
    assert report.count("checksum_differs") == 1
    assert report.findings[0].examples == ("shard-00001.tar (its headers or padding)",)


def test_shards_that_differ_from_the_manifest(copied: Path) -> None:
    (copied / "shard-00001.tar").unlink()
    edited(copied / "shard-00002.tar", lambda data: data + bytes(512))
    tar(copied / "extra.tar", pairs("k"))
    report = checked(copied, fields=("front.jpg", "wrist.jpg", "number"))
    found = {finding.kind: finding for finding in report.findings}
    assert found["missing_shard"].examples == ("shard-00001.tar",)
    assert found["size_differs"].examples[0].startswith("shard-00002.tar (")
    assert found["unlisted_shard"].examples == ("extra.tar",) and found["unlisted_shard"].severity == "warning"
    assert not report.ok


def test_a_manifest_that_is_none(copied: Path) -> None:
    (copied / "manifest.json").write_bytes(orjson.dumps({"format": 99}))
    report = checked(copied)
    assert kinds(report) == {"bad_manifest": 1} and "is no manifest of format 1" in report.findings[0].examples[0]


def test_samples_that_the_manifest_promises_are_expected(copied: Path) -> None:
    dataset = Manifest.load(copied)
    shutil.copy(copied / "shard-00000.tar", copied / "kept")
    (copied / "shard-00000.tar").write_bytes(b"")
    report = checked(copied)
    assert report.samples_expected == dataset.samples
    assert report.samples_read == dataset.samples - dataset.shards[0].samples
