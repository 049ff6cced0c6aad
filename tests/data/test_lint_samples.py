"""Samples that readers halve, repeat or fill with nothing: members apart, doubled, missing or empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from lfhelpers.data.lint.repack import repack
from tests.data.broken_tars import checked, dali, kinds, pairs, stock, tar

Members = list[tuple[str, bytes]]


def copied(path: Path, out: Path, **options: object) -> list[dict[str, bytes]]:
    made = repack(path, out, decode=False, readers=1, progress=False, **options)  # type: ignore[arg-type]
    return [made.read(index) for index in range(made.samples)]


def by_type(*keys: str, exts: tuple[str, ...] = ("jpg", "txt")) -> Members:
    """All images first, then all texts, as `tar cf set.tar *.jpg *.txt` packs them."""
    return [member for ext in exts for member in pairs(*keys, exts=(ext,))]


def whole(*keys: str, exts: tuple[str, ...] = ("jpg", "txt")) -> list[dict[str, bytes]]:
    return [{ext: f"{key}.{ext}".encode() for ext in exts} for key in keys]


def test_members_packed_by_type(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", by_type("a", "b"))
    assert [sample["__key__"] for sample in stock(path)] == ["a", "b", "a", "b"]
    assert len(dali([path], ["jpg", "txt"])) == 4
    report = checked(path)
    assert kinds(report) == {"not_adjacent": 2} and report.exit_code == 1
    assert (report.samples_expected, report.samples_read) == (2, 4)
    assert report.findings[0].examples == ("set.tar:a", "set.tar:b")
    assert "not_adjacent: 2\n        what: keys reappear after being closed" in report.table()
    assert copied(path, tmp_path / "out") == whole("a", "b")


@pytest.mark.parametrize(("members", "apart", "expected"), [
    (by_type(*"abcdefg", exts=("jpg", "json", "txt")), 7, 7),
    ([*pairs("a"), *pairs("b", exts=("jpg",)), *pairs("c"), *pairs("b", exts=("txt",))], 1, 3),
    (list(reversed(by_type("a", "b", "c"))), 3, 3),
    ([*pairs("x/a", exts=("jpg",)), *pairs("y/a"), *pairs("x/a", exts=("txt",))], 1, 2),
])
def test_members_apart_in_other_ways(tmp_path: Path, members: Members, apart: int, expected: int) -> None:
    path = tar(tmp_path / "set.tar", members)
    report = checked(path)
    assert kinds(report) == {"not_adjacent": apart}
    assert (report.samples_expected, report.samples_read) == (expected, len(stock(path)))
    samples = copied(path, tmp_path / "out")
    assert len(samples) == expected and {tuple(sample) for sample in samples} == {report.fields}
    assert sorted(data for sample in samples for data in sample.values()) == sorted(data for _, data in members)


def test_a_tar_of_images_alone_lacks_all_texts(tmp_path: Path) -> None:
    """As `tar cf set.tar --sort=name *.jpg` makes it; nothing in the tar itself tells that texts belong to it."""
    path = tar(tmp_path / "set.tar", pairs(*"abcde", exts=("jpg",)))
    assert checked(path).findings == ()
    report = checked(path, fields=("jpg", "txt"))
    assert kinds(report) == {"missing_members": 5} and report.findings[0].details == {"txt": 5}
    assert "missing txt: 5 of 5" in report.table()


def test_a_name_twice_in_a_shard(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", [("a.jpg", b"1"), ("a.txt", b"2"), ("a.jpg", b"3")])
    with pytest.raises(ValueError, match="duplicate file name"):
        stock(path)
    report = checked(path)
    assert kinds(report) == {"dup_in_shard": 1} and report.samples_expected == 1
    assert report.findings[0].examples == ("set.tar:a.jpg",)
    assert copied(path, tmp_path / "out") == [{"jpg": b"1", "txt": b"2"}]
    assert (tmp_path / "out" / "left_out.jsonl").read_text() == (
        '{"shard":"set.tar","key":"a","member":"a.jpg","why":"duplicate; the first one is kept"}\n')


def test_a_whole_sample_twice_in_a_shard(tmp_path: Path) -> None:
    report = checked(tar(tmp_path / "set.tar", [*pairs("a", "b"), *pairs("a")]))
    assert kinds(report) == {"dup_in_shard": 2} and (report.samples_expected, report.samples_read) == (2, 3)


def test_a_key_in_two_shards(tmp_path: Path) -> None:
    for name in ("one", "two"):
        tar(tmp_path / name / "shard-0.tar", [*pairs(name), *pairs("k")])  # the shards' names are alike too
    report = checked(tmp_path)
    assert kinds(report) == {"dup_across_shards": 1} and (report.samples_expected, report.samples_read) == (3, 4)
    assert report.findings[0].examples == ("one/shard-0.tar:k and two/shard-0.tar:k",)
    assert copied(tmp_path, tmp_path / "out") == whole("one", "k", "two")


def test_many_keys_in_many_shards(tmp_path: Path) -> None:
    for shard in range(4):
        tar(tmp_path / f"{shard}.tar", pairs("all", *(f"k{key}" for key in range(shard * 10, shard * 10 + 12))))
    report = checked(tmp_path)
    assert kinds(report) == {"dup_across_shards": 3 + 3 * 2}  # `all` three times too often, and two of each seam
    assert report.samples_expected == 43 and report.samples_read == 52
    assert report.findings[0].examples[0] == "0.tar:all and 1.tar:all and 2.tar:all and 3.tar:all"
    assert len(report.findings[0].examples) == 5 and "and 4 more" in report.table()
    assert len(copied(tmp_path, tmp_path / "out")) == 43


def test_a_sample_spread_over_shards_is_put_together(tmp_path: Path) -> None:
    tar(tmp_path / "images.tar", pairs("a", "b", "c", exts=("jpg",)))
    tar(tmp_path / "texts.tar", pairs("a", "b", exts=("txt",)))
    report = checked(tmp_path)
    assert kinds(report) == {"split_over_shards": 2, "missing_members": 1}
    assert report.findings[0].examples[0] == "images.tar:a and texts.tar:a"
    assert report.findings[1].examples == ("images.tar:c (txt)",)
    assert copied(tmp_path, tmp_path / "out") == whole("a", "b")


def test_a_missing_member(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", [*pairs("a"), ("b.jpg", b"b.jpg"), *pairs("c")])
    assert [sample[1] for sample in dali([path], ["jpg", "txt"])] == [b"a.txt", b"", b"c.txt"]
    assert "txt" not in stock(path)[1]
    report = checked(path)
    assert kinds(report) == {"missing_members": 1} and report.findings[0].details == {"txt": 1}
    assert report.findings[0].examples == ("set.tar:b (txt)",)
    assert copied(path, tmp_path / "out") == whole("a", "c")  # read = 2, left out = {txt: 1}, on both paths
    again = repack(path, tmp_path / "out", decode=False, readers=1, progress=False)
    assert again.source["left out"] == {"missing txt": 1}
    shards = sorted((tmp_path / "out").glob("*.tar"))
    assert dali(shards, ["jpg", "txt"], "error") == [(b"a.jpg", b"a.txt"), (b"c.jpg", b"c.txt")]
    assert [(sample["jpg"], sample["txt"]) for path in shards for sample in stock(path)] == dali(shards, ["jpg", "txt"])


def test_missing_members_are_counted_by_name(tmp_path: Path) -> None:
    exts = ("front.jpg", "wrist.jpg", "txt", "state.f32")
    members = pairs(*(f"k{number:02d}" for number in range(20)), exts=exts)
    gone = {"k03.txt", "k07.txt", "k07.wrist.jpg", "k11.state.f32"}
    for shard in range(2):
        tar(tmp_path / f"{shard}.tar", [item for item in members[shard * 40:shard * 40 + 40] if item[0] not in gone])
    report = checked(tmp_path)
    assert kinds(report) == {"missing_members": 3} and report.fields == exts
    assert report.findings[0].details == {"txt": 2, "wrist.jpg": 1, "state.f32": 1}
    assert report.findings[0].examples == ("0.tar:k03 (txt)", "0.tar:k07 (wrist.jpg, txt)", "1.tar:k11 (state.f32)")


def test_an_empty_member_is_not_a_missing_one(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", [*pairs("a", "b"), ("c.jpg", b"c"), ("c.txt", b"")])
    assert dali([path], ["jpg", "txt"])[2] == (b"c", b"")
    report = checked(path)
    assert kinds(report) == {"empty_members": 1} and report.findings[0].examples == ("set.tar:c.txt",)
    assert copied(path, tmp_path / "out") == whole("a", "b")
    assert '"key":"c","member":"txt","why":"empty"' in (tmp_path / "out" / "left_out.jsonl").read_text()


def test_no_whole_sample_is_one_sentence_and_no_folder(tmp_path: Path) -> None:
    from lfhelpers.errors import LfError

    path = tar(tmp_path / "set.tar", pairs("a", "b", exts=("jpg",)))
    with pytest.raises(LfError, match=r"^no sample is whole: missing txt: 2; see what is wrong .*$"):
        copied(path, tmp_path / "out", fields=("jpg", "txt"))
    assert [item.name for item in tmp_path.iterdir()] == ["set.tar"]
