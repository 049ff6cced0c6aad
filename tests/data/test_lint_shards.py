"""Whole shards: empty, cut, damaged, joined or compressed ones, and sound sets of others."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds

from lfhelpers.data import Manifest
from lfhelpers.data.lint.repack import repack
from tests.data.broken_tars import checked, dali, edited, four, kinds, pairs, stock, tar
from tests.data.toy_shards import photo


def test_shards_without_samples_are_named_and_skipped(tmp_path: Path) -> None:
    tar(tmp_path / "good.tar", pairs("a"))
    tar(tmp_path / "zeros.tar", [])
    (tmp_path / "nothing.tar").write_bytes(b"")
    assert len(dali([tmp_path / "good.tar", tmp_path / "zeros.tar"], ["jpg", "txt"])) == 2  # one too many
    report = checked(tmp_path)
    assert kinds(report) == {"empty_shard": 2} and report.exit_code == 1
    assert report.findings[0].examples == ("nothing.tar has 0 bytes", "zeros.tar has no members, only zero blocks")
    assert (report.shards, report.samples_expected, report.samples_read) == (3, 1, 1)
    assert repack(tmp_path, tmp_path / "out", decode=False, readers=1, progress=False).samples == 1


def test_a_cut_shard_never_gives_half_a_member(tmp_path: Path) -> None:
    path = edited(four(tmp_path / "cut.tar"), lambda data: data[:14_000])
    report = checked(path)
    assert kinds(report) == {"truncated_shard": 1} and report.samples_expected == 3
    assert report.findings[0].examples == ("cut.tar is cut inside 003.bin, which should end at byte 14264",)
    made = repack(path, tmp_path / "out", decode=False, readers=1, progress=False)
    assert [set(made.read(index)["bin"]) for index in range(made.samples)] == [{1}, {2}, {3}]


@pytest.mark.parametrize(("length", "kind", "words", "samples"), [
    (14_264, "truncated_shard", "no end mark at byte 14336", 4),  # without the last member's padding
    (14_336, "truncated_shard", "no end mark at byte 14336", 4),
    (10_752 + 100, "truncated_shard", "is cut inside a header at byte 10752", 3),
    (10_752, "truncated_shard", "no end mark at byte 10752", 3),
    (14_336 + 512, "", "", 4),  # one zero block ends an archive as well as two
    (300, "damaged_shard", "is no tar file", 0),
])
def test_cuts_anywhere(tmp_path: Path, length: int, kind: str, words: str, samples: int) -> None:
    report = checked(edited(four(tmp_path / "cut.tar"), lambda data: data[:length]))
    assert kinds(report) == ({kind: 1} if kind else {}) and report.samples_expected == samples
    assert not kind or words in report.findings[0].examples[0]


def test_a_damaged_header_ends_what_readers_see(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", pairs("a", "b", "c"))
    edited(path, lambda data: data.__setitem__(4 * 1024 + 3, 0xFF))
    assert [sample["__key__"] for sample in stock(path)] == ["a", "b"]  # and no word about c
    report = checked(path)
    assert kinds(report) == {"damaged_shard": 1}
    assert report.findings[0].examples == ("set.tar has no header at byte 4096; what follows is lost",)


@pytest.mark.parametrize("data", [b"<html>404</html>", b"<html>" * 200, np.random.default_rng(0).bytes(5000)])
def test_what_is_no_tar(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "set.tar").write_bytes(data)
    report = checked(tmp_path)
    assert kinds(report) == {"damaged_shard": 1} and report.findings[0].examples == ("set.tar is no tar file",)


def test_joined_tars_hide_all_but_the_first(tmp_path: Path) -> None:
    one, two = tar(tmp_path / "one.tar", pairs("a")), tar(tmp_path / "two.tar", pairs("b", "c"))
    (tmp_path / "set").mkdir()
    both = tmp_path / "set" / "both.tar"
    both.write_bytes(one.read_bytes() + two.read_bytes())
    assert [sample["__key__"] for sample in stock(both)] == ["a"]
    report = checked(both)
    assert kinds(report) == {"data_after_end": 1} and (report.samples_expected, report.samples_read) == (3, 1)
    assert repack(both, tmp_path / "out", decode=False, readers=1, progress=False).samples == 3
    report = checked(edited(one, lambda data: data + b"more"))
    assert kinds(report) == {"data_after_end": 1}


@pytest.mark.parametrize(("end", "packer"), [(".tar.gz", gzip.compress), (".tar.xz", lzma.compress),
                                             (".tar.bz2", bz2.compress), (".tar", gzip.compress)])
def test_compressed_shards(tmp_path: Path, end: str, packer: Callable[[bytes], bytes]) -> None:
    keys = [f"k{number}" for number in range(30)]
    packed = packer(tar(tmp_path / "plain", pairs(*keys)).read_bytes())
    (tmp_path / "set").mkdir()
    path = tmp_path / "set" / f"packed{end}"
    path.write_bytes(packed)
    report = checked(path.parent)
    assert kinds(report) == {"compressed_shard": 1} and report.ok
    assert report.samples_expected == report.samples_read == len(stock(path)) == 30
    made = repack(path, tmp_path / "out", decode=False, readers=1, progress=False)
    assert [made.read(index)["txt"] for index in range(30)] == [f"{key}.txt".encode() for key in keys]
    path.write_bytes(packed[:len(packed) // 2])
    assert set(kinds(checked(path.parent))) & {"truncated_shard", "damaged_shard"}


def test_an_unreadable_file_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "set.tar", pairs("a"))

    def refused(self: Path, *args: object, **options: object) -> object:
        if self.suffix == ".tar":
            raise PermissionError(13, "Permission denied")
        return usual(self, *args, **options)  # type: ignore[arg-type]

    usual = Path.open
    monkeypatch.setattr(Path, "open", refused)
    report = checked(path)
    assert kinds(report) == {"damaged_shard": 1}
    assert report.findings[0].examples == ("set.tar can't be read: Permission denied",)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_sound_set_by_tarfile_gives_no_finding(tmp_path: Path, form: int) -> None:
    tar(tmp_path / "a.tar", pairs("a", "b", "d/c"), form)
    tar(tmp_path / "sub" / "b.tar", pairs("e", "f"), form)
    report = checked(tmp_path, level="members")
    assert report.findings == () and (report.shards, report.members, report.samples_read) == (2, 10, 5)


def test_a_sound_foreign_set_gives_no_finding(tmp_path: Path) -> None:
    """TarWriter gives every member a PAX header, for its time."""
    with wds.ShardWriter(str(tmp_path / "shard-%02d.tar"), maxcount=4, verbose=0) as writer:
        for number in range(11):
            writer.write({"__key__": f"k{number:03d}", "jpg": photo(number, 0), "json": {"n": number}, "cls": number})
    for level in ("members", "decode"):
        report = checked(tmp_path, level=level)
        assert report.findings == () and report.exit_code == 0 and report.table().endswith("nothing found")
        assert (report.shards, report.samples_expected, report.samples_read) == (3, 11, 11)
        assert set(report.fields) == {"jpg", "json", "cls"}


def test_our_own_set_gives_no_finding(dataset: Manifest) -> None:
    report = checked(dataset.folder, level="decode")
    assert report.findings == () and report.samples_expected == report.samples_read == dataset.samples
    assert report.fields == dataset.fields
