"""A clean copy is the same however it was interrupted, changes nothing in its source, and is sound itself."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.data import Manifest
from lfhelpers.data.lint import lint
from lfhelpers.data.lint.repack import repack
from lfhelpers.errors import LfError
from lfhelpers.runs import project
from tests.data.broken_tars import dali, stock, tar
from tests.data.toy_shards import contents, photo

HELD = """
import sys, time
from lfhelpers.data.lint import repack
read = repack.Copy.__call__

def held(self, index):
    if index == 21:  # of the seventh shard of eight
        time.sleep(600)
    return read(self, index)

repack.Copy.__call__ = held
repack.repack(sys.argv[1], sys.argv[2], readers=2, jobs=1, progress=False)
"""


def messy(folder: Path) -> Path:
    """30 samples in two shards: keys with dots, and members that are apart, doubled, missing, empty or cut."""
    members = [(f"{number // 4}.{number:02d}_x.{ext}", photo(number, 0) if ext == "jpg" else b"text %d" % number)
               for number in range(30) for ext in ("jpg", "txt")]
    members[8] = (members[8][0], members[8][1][:500])  # 1.04_x.jpg is cut
    members[13] = (members[13][0], b"")  # 1.06_x.txt is empty
    del members[21]  # 2.10_x.txt is missing
    members.insert(30, members[2])  # 0.01_x.jpg twice
    members.append(members.pop(40))  # a member far from its sample
    tar(folder / "one.tar", [*members[:31], ("README", b"read me")])
    tar(folder / "two.tar", [*members[31:], *members[4:6]])
    return folder


def state(folder: Path) -> dict[str, tuple[str, int]]:
    return {path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
            for path in folder.iterdir()}


def test_all_that_can_be_saved_is_saved(tmp_path: Path) -> None:
    source = messy(tmp_path / "set")
    before = state(source)
    made = repack(source, tmp_path / "out", progress=False)
    assert state(source) == before
    assert made.samples == 27 and made.fields == ("jpg", "txt")
    assert made.source["left out"] == {"belongs to no sample": 1, "duplicate": 3, "empty txt": 1, "missing txt": 1,
                                       "unreadable jpg": 1}
    numbers = [number for number in range(30) if number not in (4, 6, 10)]
    assert [made.read(index) for index in range(27)] == [
        {"jpg": photo(number, 0), "txt": b"text %d" % number} for number in numbers]
    keys = (tmp_path / "out" / "keys.txt").read_text().split()
    assert [key.partition(":")[2] for key in keys] == [f"{number // 4}.{number:02d}_x" for number in numbers]
    report = lint(tmp_path / "out", "decode", progress=False)
    assert report.findings == () and report.samples_expected == report.samples_read == 27
    shards = [tmp_path / "out" / shard.name for shard in made.shards]
    assert len(dali(shards, ["jpg", "txt"], "error")) == sum(len(stock(path)) for path in shards) == 27
    assert os.listdir(tmp_path) == ["set", "out"] or os.listdir(tmp_path) == ["out", "set"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_copy_ends_with_the_same_bytes(
        tmp_path: Path, signum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = messy(tmp_path / "set")
    repack(source, tmp_path / "whole", readers=2, progress=False)
    process = subprocess.Popen([sys.executable, "-c", HELD, str(source), str(tmp_path / "again")], cwd=project(),
                               stderr=subprocess.DEVNULL)
    building = tmp_path / ".again.building"
    while not list(building.glob(".shard-00006.*.tmp")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signum)
    assert process.wait() != 0
    assert not (tmp_path / "again").exists() and (tmp_path / ".again.repack.npz").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in building.glob("*.tar")}
    with monkeypatch.context() as patch:
        patch.setattr("lfhelpers.data.lint.repack.gather", None)  # nothing is checked or decoded again
        made = repack(source, tmp_path / "again", readers=2, progress=False)
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    finished = {shard.name: (tmp_path / "again" / shard.name).stat().st_mtime_ns for shard in made.shards}
    assert len(kept) == 6 and kept.items() <= finished.items()  # nothing was written twice
    assert sorted(os.listdir(tmp_path)) == ["again", "set", "whole"]
    assert repack(source, tmp_path / "again", readers=2, progress=False).hash == made.hash  # once more: nothing to do


def test_any_number_of_writers_gives_the_same_bytes(tmp_path: Path) -> None:
    source = messy(tmp_path / "set")
    for jobs in (1, 2):
        repack(source, tmp_path / str(jobs), jobs=jobs, progress=False)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_a_plan_of_other_tars_is_not_used(tmp_path: Path) -> None:
    """Of the same names and sizes, at the same place."""
    first, second = [("a.jpg", b"1"), ("a.txt", b"2"), ("b.jpg", b"3"), ("b.txt", b"4")], [
        ("a.jpg", b"1"), ("b.jpg", b"3"), ("b.txt", b"4"), ("a.txt", b"2")]
    tar(tmp_path / "set" / "a.tar", first)
    with pytest.raises(LfError, match="shard_mb"):
        repack(tmp_path / "set", tmp_path / "out", decode=False, shard_mb=0, progress=False)
    tar(tmp_path / "set" / "a.tar", second)
    made = repack(tmp_path / "set", tmp_path / "out", decode=False, readers=1, progress=False)
    assert [made.read(index) for index in range(2)] == [{"jpg": b"1", "txt": b"2"}, {"jpg": b"3", "txt": b"4"}]


def test_a_source_that_shrinks_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    from lfhelpers.data.lint.gather import gather
    from lfhelpers.data.lint.repack import Copy
    from lfhelpers.data.lint.sources import find

    path = tar(tmp_path / "a.tar", [("a.jpg", b"1" * 900)])
    copy = Copy((path,), gather(find(path), (), False, 1, False))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(LfError, match=r"a.tar has become shorter since it was checked; repack it again.$"):
        copy(0)


def test_names_that_our_shards_do_not_allow(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", [("a.Input-IDs.npy", b"1"), ("a.bild ä", b"2")])
    assert repack(path, tmp_path / "out", progress=False).fields == ("input_ids.npy", "bild__")
    path = tar(tmp_path / "b.tar", [("a.x-y", b"1"), ("a.x_y", b"2")])
    with pytest.raises(LfError, match="members x-y, x_y can't be told apart"):
        repack(path, tmp_path / "out2", progress=False)


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", [("a\udcff.jpg", b"1"), ("a\udcff.jpg", b"2"), ("x\udcfe", b"3")])
    made = repack(path, tmp_path / "out", decode=False, progress=False)
    assert made.samples == 1 and (tmp_path / "out" / "keys.txt").read_bytes() == b"a.tar:a\xff\n"
    assert b"x\\\\xfe" in (tmp_path / "out" / "left_out.jsonl").read_bytes()


KEYS = st.text("abc123_/", min_size=1, max_size=6).filter(lambda key: not key.endswith("/") and "//" not in key)


@settings(max_examples=25, deadline=None)
@given(st.lists(KEYS, min_size=2, max_size=12, unique=True), st.permutations(range(36)), st.integers(1, 3))
def test_any_order_over_any_shards_gives_all_samples_once(
        tmp_path_factory: pytest.TempPathFactory, keys: list[str], order: list[int], count: int) -> None:
    folder = tmp_path_factory.mktemp("any")
    members = [(f"{key}.{ext}", f"{key}.{ext}".encode()) for key in keys for ext in ("front.jpg", "wrist.jpg", "txt")]
    mixed = [members[place] for place in order if place < len(members)]
    for number in range(count):
        tar(folder / "set" / f"{number}.tar", mixed[number::count])
    report = lint(folder / "set", progress=False)
    assert report.samples_expected == len(keys)
    made: Manifest = repack(folder / "set", folder / "out", decode=False, readers=1, progress=False)
    read = {made.read(index)["txt"]: made.read(index) for index in range(made.samples)}
    assert read == {f"{key}.txt".encode(): {ext: f"{key}.{ext}".encode() for ext in ("front.jpg", "wrist.jpg", "txt")}
                    for key in keys}
    assert lint(folder / "out", progress=False).findings == ()


def test_no_process_is_left(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)
    lint(messy(tmp_path / "set"), "decode", jobs=2, progress=False)
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    assert [process for process in left if "spawn_main" in " ".join(process.cmdline())] == []
