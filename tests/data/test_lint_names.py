"""Names that readers split, lose or stumble over: dots in keys, PAX headers, upper case, extensions, side files."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import webdataset as wds

from lfhelpers.data.lint.repack import repack
from tests.data.broken_tars import checked, dali, kinds, pairs, stock, tar

CAMERAS = ("front.jpg", "wrist.jpg", "txt")


def test_keys_with_dots_are_told_from_the_set(tmp_path: Path) -> None:
    bad = tar(tmp_path / "bad.tar", pairs("ep/1.5_a", "ep/1.7_b"))
    assert [sample["__key__"] for sample in stock(bad)] == ["ep/1"]  # what the library makes of it
    report = checked(bad)
    assert (report.samples_expected, report.samples_read, kinds(report)) == (2, 1, {"dotted_keys": 2})
    assert report.findings[0].examples == ("bad.tar:ep/1.5_a", "bad.tar:ep/1.7_b")
    assert report.exit_code == 1 and report.fields == ("jpg", "txt")
    made = repack(bad, tmp_path / "good", decode=False, readers=1, progress=False)
    assert [made.read(index) for index in range(made.samples)] == [
        {ext: f"{key}.{ext}".encode() for ext in ("jpg", "txt")} for key in ("ep/1.5_a", "ep/1.7_b")]
    assert (tmp_path / "good" / "keys.txt").read_text().split() == ["bad.tar:ep/1.5_a", "bad.tar:ep/1.7_b"]


@pytest.mark.parametrize(("keys", "exts"), [
    ([f"1764{number:04d}.{number * 377 % 1000:03d}" for number in range(40)], ("jpg", "txt")),  # a time each
    ([f"1764{number // 8:04d}.{number * 377 % 1000:03d}" for number in range(40)], ("jpg", "txt")),
    ([f"1764{number // 8:04d}.{number * 377 % 1000:03d}" for number in range(40)], CAMERAS),
    ([f"{number / 20:.2f}" for number in range(50)], ("jpg", "json")),  # 0.00 to 2.45: the last key has fewer
    (["img.v1.2", "img.v1.3"], ("jpg",)),
    (["a/b.c/v1.2.3", "a/b.c/v1.2.4", "a/b.c/v2.0.1"], ("jpg", "cls")),
    (["run.2024-05-01.a", "run.2024-05-02.b", "run.2024-05-03.c"], ("png", "json")),
])
def test_keys_with_dots_of_many_forms(tmp_path: Path, keys: list[str], exts: tuple[str, ...]) -> None:
    report = checked(tar(tmp_path / "set.tar", pairs(*keys, exts=exts)))
    assert kinds(report) == {"dotted_keys": len(keys)}
    assert report.samples_expected == len(keys) and set(report.fields) == set(exts)
    assert repack(tmp_path / "set.tar", tmp_path / "out", decode=False, progress=False).samples == len(keys)


def test_a_few_keys_with_dots_among_many_without(tmp_path: Path) -> None:
    sound = [f"k{number}" for number in range(30)]
    tar(tmp_path / "a.tar", pairs(*sound[:20], exts=CAMERAS))
    tar(tmp_path / "b.tar", pairs(*sound[20:], "1.5_a", "1.7_b", exts=CAMERAS))
    report = checked(tmp_path)
    assert kinds(report) == {"dotted_keys": 2} and report.findings[0].examples == ("b.tar:1.5_a", "b.tar:1.7_b")
    assert (report.samples_expected, report.samples_read) == (32, 31)


@pytest.mark.parametrize("members", [
    pairs("a", exts=CAMERAS),
    pairs("a", exts=("front.jpg", "wrist.jpg")),
    pairs("a", "b", "c", exts=(*CAMERAS, "state.f32", "action.f32", "json")),
    pairs("v1.0/a", "v1.0/b", "./c"),
    pairs(*"abcdef", exts=("0.jpg", "1.jpg", "2.jpg", "3.jpg")),
    pairs(*"abcdef", exts=("jpg", "mask.png", "depth.png")),
    pairs(*"abcdef", exts=("left.jpg", "left.json", "right.jpg", "right.json")),
])
def test_several_cameras_are_legal(tmp_path: Path, members: list[tuple[str, bytes]]) -> None:
    report = checked(tar(tmp_path / "set.tar", members))
    assert report.findings == () and report.ok and report.exit_code == 0
    keys = {name.split("/")[-1].split(".")[0] for name, _ in members}
    assert report.samples_expected == report.samples_read == len(keys)


def test_a_member_that_some_samples_have_beside_the_others_is_no_key(tmp_path: Path) -> None:
    members = pairs(*(f"k{number}" for number in range(20)), exts=("jpg",))
    members[6:6] = [("k5.thumb.jpg", b"t")]
    members[3:3] = [("k2.thumb.jpg", b"t")]
    report = checked(tar(tmp_path / "set.tar", members))
    assert kinds(report) == {"extra_members": 2} and report.ok
    assert report.findings[0].details == {"thumb.jpg": 2}


@pytest.mark.parametrize("other", ["thumb.jpg", "cam1.jpg"])
def test_a_camera_that_a_third_of_the_samples_have_is_no_key(tmp_path: Path, other: str) -> None:
    members = [member for number in range(60)
               for member in pairs(f"k{number}", exts=("jpg", other) if number % 3 else ("jpg",))]
    members += pairs(*(f"k{number}" for number in range(60, 120)), exts=("jpg",))
    report = checked(tar(tmp_path / "set.tar", members))
    assert kinds(report) == {"extra_members": 40} and report.ok and report.samples_expected == 120


@pytest.mark.parametrize("keys", [
    ["数据/帧一", "数据/帧二"],
    ["d" * 60 + "/" + "k" * 40, "e" * 60 + "/" + "k" * 40],  # 105 bytes with the extension
    ["帧一", "x" * 120],
])
def test_names_in_pax_headers_are_lost_by_dali(tmp_path: Path, keys: list[str]) -> None:
    pax = tar(tmp_path / "pax.tar", pairs(*keys), tarfile.PAX_FORMAT)
    gnu = tar(tmp_path / "gnu.tar", pairs(*keys), tarfile.GNU_FORMAT)
    whole = [tuple(f"{key}.{ext}".encode() for ext in ("jpg", "txt")) for key in keys]
    assert dali([gnu], ["jpg", "txt"]) == whole
    assert dali([pax], ["jpg", "txt"]) != whole
    assert [sample["jpg"] for sample in stock(pax)] == [sample[0] for sample in whole]
    assert checked(gnu).findings == ()
    report = checked(pax)
    assert kinds(report) == {"pax_names": 4} and report.findings[0].severity == "error"
    assert report.findings[0].examples == tuple(f"pax.tar:{key}.{ext}" for key in keys for ext in ("jpg", "txt"))
    assert report.samples_expected == report.samples_read == 2


def test_names_of_100_bytes_need_no_pax_header(tmp_path: Path) -> None:
    keys = ["d" * 50 + "/" + "k" * 45, "e" * 50 + "/" + "k" * 45]
    path = tar(tmp_path / "set.tar", pairs(*keys), tarfile.PAX_FORMAT)
    assert len(dali([path], ["jpg", "txt"])) == 2 and checked(path).findings == ()


def test_our_packer_is_read_alike_by_both_libraries(tmp_path: Path) -> None:
    """Keys that TarWriter itself packs so that DALI loses two of three."""
    keys = ["帧一", "帧二", "x" * 120]
    with wds.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for key in keys:
            writer.write({"__key__": key, "jpg": f"{key}.jpg".encode(), "txt": f"{key}.txt".encode()})
    theirs = dali([tmp_path / "theirs.tar"], ["jpg", "txt"])
    assert len(theirs) == 2 and theirs[1] == (b"", b"")
    made = repack(tmp_path / "theirs.tar", tmp_path / "ours", decode=False, readers=1, progress=False)
    ours = [tmp_path / "ours" / shard.name for shard in made.shards]
    read = [[(sample["jpg"], sample["txt"]) for path in ours for sample in stock(path)],
            dali(ours, ["jpg", "txt"], "error"), dali(ours, ["jpg", "txt"], "error", indexed=True),
            [tuple(made.read(index).values()) for index in range(made.samples)]]
    assert read == [[(f"{key}.jpg".encode(), f"{key}.txt".encode()) for key in keys]] * 4
    assert len(read[0]) == made.samples == 3


def test_upper_case_among_lower_case(tmp_path: Path) -> None:
    odd = [*pairs("c", exts=("JPG", "txt")), *pairs("d", exts=("jpg", "Txt"))]
    path = tar(tmp_path / "set.tar", [*pairs("a", "b"), *odd])
    assert [sample.keys() for sample in stock(path)] == [{"__key__", "jpg", "txt"}] * 4
    assert [sum(map(bool, sample)) for sample in dali([path], ["jpg", "txt"])] == [2, 2, 1, 1]
    report = checked(path)
    assert kinds(report) == {"extension_case": 2} and not report.ok
    assert report.findings[0].examples == ("set.tar:c.JPG", "set.tar:d.Txt")
    made = repack(path, tmp_path / "out", decode=False, readers=1, progress=False)
    assert made.samples == 4 and made.fields == ("jpg", "txt") and checked(tmp_path / "out").findings == ()


def test_upper_case_everywhere_is_a_warning(tmp_path: Path) -> None:
    report = checked(tar(tmp_path / "set.tar", pairs("a", "b", exts=("JPG", "TXT"))))
    assert kinds(report) == {"extension_case": 4} and report.ok and report.fields == ("jpg", "txt")


@pytest.mark.parametrize(("other", "field"), [("jpeg", "jpg"), ("png", "jpg"), ("JPEG", "jpg")])
def test_one_image_under_two_extensions(tmp_path: Path, other: str, field: str) -> None:
    path = tar(tmp_path / "set.tar", [*pairs("a", "c"), *pairs("b", exts=(other, "txt"))])
    assert dali([path], [f"{field};{other}", "txt"])[2][0] == f"b.{other}".encode()
    assert dali([path], [field, "txt"])[2][0] == b""
    report = checked(path)
    assert report.count("extension_mix") == 1 and report.count("missing_members") == 0
    assert report.fields == (field, "txt")
    made = repack(path, tmp_path / "out", decode=False, readers=1, progress=False)
    assert made.samples == 3 and made.read(2) == {field: f"b.{other}".encode(), "txt": b"b.txt"}


def test_two_images_in_each_sample_are_two_members(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", [*pairs("a", "b", exts=("jpg", "png")), *pairs("c", exts=("jpeg", "png"))])
    report = checked(path)
    assert report.fields == ("jpg", "png") and kinds(report) == {"extension_mix": 1}


@pytest.mark.parametrize(("name", "kind", "detail", "splits"), [
    ("README", tarfile.REGTYPE, "without extension", True),
    ("__meta__", tarfile.REGTYPE, "without extension", True),
    ("d/._a.jpg", tarfile.REGTYPE, "hidden in a folder", True),
    ("._a.jpg", tarfile.REGTYPE, "hidden", False),
    (".DS_Store", tarfile.REGTYPE, "hidden", False),
    ("d/", tarfile.DIRTYPE, "folder", False),
    ("link.jpg", tarfile.SYMTYPE, "link", False),
    ("hard.jpg", tarfile.LNKTYPE, "link", False),
    ("pipe.jpg", tarfile.FIFOTYPE, "other", False),
])
def test_side_files(tmp_path: Path, name: str, kind: bytes, detail: str, splits: bool) -> None:
    members = [("d/a.jpg", b"1"), (name, b"side"), ("d/a.txt", b"2"), *pairs("d/b")]
    path = tar(tmp_path / "set.tar", members, kinds={name: kind})
    assert (len(dali([path], ["jpg", "txt"])) > 2) is splits  # then it is an error, else a warning
    report = checked(path)
    (found,) = report.findings
    assert (found.kind, found.count, found.details) == ("side_files", 1, {detail: 1})
    assert found.examples == (f"set.tar:{name}",)
    assert report.ok is not splits and report.samples_expected == 2
    made = repack(path, tmp_path / "out", decode=False, readers=1, progress=False)
    assert [list(made.read(index).values()) for index in range(2)] == [[b"1", b"2"], [b"d/b.jpg", b"d/b.txt"]]
    assert f'"member":"{name}","why":"belongs to no sample"' in (tmp_path / "out" / "left_out.jsonl").read_text()
