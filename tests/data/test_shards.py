"""The same samples give the same bytes, whoever writes them and however often that was interrupted; readers agree."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from lfhelpers.data import Manifest, shards, tar
from lfhelpers.errors import LfError
from lfhelpers.runs import project
from tests.data.toy_shards import SAMPLES, contents, failing_sample, make, sample

Writing = Callable[[int], subprocess.Popen[bytes]]
WRITE = """
import functools, pathlib, sys
from lfhelpers.data import shards
from tests.data.toy_shards import SAMPLES, held_sample
sample = functools.partial(held_sample, pathlib.Path(sys.argv[2]))
shards.write(sys.argv[1], sample, SAMPLES, readers=1, jobs=int(sys.argv[3]), progress=False)
"""


@pytest.fixture
def writing(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Starts a process that writes the toy set, held in the midst of the third shard until there is a file `go`."""
    building = tmp_path / ".set.building"
    with contextlib.ExitStack() as stack:
        stack.callback((tmp_path / "go").touch)

        def start(jobs: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", WRITE, str(tmp_path / "set"), str(tmp_path / "go"), str(jobs)]
            process = stack.enter_context(subprocess.Popen(command, cwd=project(), stderr=subprocess.PIPE))
            stack.callback(process.kill)
            while not list(building.glob(".rows/*.npz")) or not list(building.glob(".shard-00002.*.tmp")):
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            return process

        yield start


def test_writers_of_any_number_give_the_same_bytes(dataset: Manifest, tmp_path: Path) -> None:
    make(tmp_path / "two", jobs=2)
    assert contents(tmp_path / "two") == contents(dataset.folder)
    assert os.listdir(tmp_path) == ["two"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_work_is_continued_to_the_same_bytes(dataset: Manifest, tmp_path: Path, writing: Writing, jobs: int
                                                    ) -> None:
    process = writing(jobs)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    (tmp_path / "go").touch()
    psutil.wait_procs(family)  # writers whose parent is gone end by themselves
    assert not (tmp_path / "set").exists()
    building = tmp_path / ".set.building"
    finished = {path: path.stat().st_mtime_ns for path in building.glob("*.tar")
                if (building / ".rows" / f"{path.stem[-5:]}.npz").exists()}
    assert finished
    renamed = {tmp_path / "set" / path.name: time for path, time in finished.items()}
    make(tmp_path / "set")
    assert contents(tmp_path / "set") == contents(dataset.folder)
    assert {path: path.stat().st_mtime_ns for path in renamed} == renamed
    assert sorted(os.listdir(tmp_path)) == ["go", "set"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_leaves_no_process_and_no_half_file(dataset: Manifest, tmp_path: Path, writing: Writing, jobs: int
                                                         ) -> None:
    process = writing(jobs)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    _, error = process.communicate()
    assert process.returncode != 0 and b"KeyboardInterrupt" in error
    psutil.wait_procs(family)
    assert not list((tmp_path / ".set.building").rglob("*.tmp"))
    make(tmp_path / "set")
    assert contents(tmp_path / "set") == contents(dataset.folder)


FULL = (r"^the disk is full: .*/set needs about 0\.\d MiB more and [\d,.]+ MiB are free; make room and give the same "
        r"command again, its \d finished shards are kept\.$")


def test_a_full_disk_keeps_finished_shards_and_says_what_is_needed(
        dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 6:  # the plan, then tar, index and rows of a shard, then tar and index of the second
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(LfError, match=FULL):
            make(tmp_path / "set")
    assert not (tmp_path / "set").exists()
    assert not list((tmp_path / ".set.building").rglob("*.tmp"))
    make(tmp_path / "set")
    assert contents(tmp_path / "set") == contents(dataset.folder)


@pytest.fixture
def small_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_really_full_disk_stops_all_writers(dataset: Manifest, small_disk: Path) -> None:
    with pytest.raises(LfError, match=FULL):
        make(small_disk / "set", jobs=2)
    assert not list(small_disk.rglob("*.tmp")) and not (small_disk / "set").exists()
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    make(small_disk / "set", jobs=2)
    assert contents(small_disk / "set") == contents(dataset.folder)


def test_tars_are_plain_ustar_with_fixed_times_and_adjacent_members(dataset: Manifest) -> None:
    for shard in dataset.shards:
        with tarfile.open(dataset.folder / shard.name) as file:
            found = file.getmembers()
            assert not file.pax_headers
        assert [member.name for member in found[:4]] == [
            f"{found[0].name[:9]}.{ext}" for ext in ("front.jpg", "wrist.jpg", "number")] + [found[3].name]
        heads = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.isfile()) for m in found}
        assert heads == {(0, 0, 0, "", "", 0o644, True)}
        assert (dataset.folder / shard.name).read_bytes()[257:265] == b"ustar\x0000"
        assert shard.size == (dataset.folder / shard.name).stat().st_size


def test_our_index_is_the_one_that_dalis_own_tool_writes(dataset: Manifest, tmp_path: Path) -> None:
    wds2idx = pytest.importorskip("wds2idx", reason="DALI is not installed (Linux x86-64 only)")
    for shard in dataset.shards:
        with wds2idx.IndexCreator(str(dataset.folder / shard.name), str(tmp_path / "theirs"), verbose=False) as creator:
            creator.create_index()
        assert (dataset.folder / shard.name).with_suffix(".idx").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_dali_reads_what_the_manifest_reads(dataset: Manifest) -> None:
    dali = pytest.importorskip("nvidia.dali", reason="DALI is not installed (Linux x86-64 only)")
    paths = [str(dataset.folder / shard.name) for shard in dataset.shards]

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def reader():  # type: ignore[no-untyped-def]
        return tuple(dali.fn.readers.webdataset(
            name="reader", paths=paths, index_paths=[path.replace(".tar", ".idx") for path in paths],
            ext=list(dataset.fields), missing_component_behavior="error"))

    pipe = reader()
    assert pipe.reader_meta("reader")["epoch_size"] == SAMPLES
    for index in range(SAMPLES):
        read = [np.asarray(output.as_array())[0].tobytes() for output in pipe.run()]
        assert dict(zip(dataset.fields, read, strict=True)) == dataset.read(index)


def test_webdataset_reads_what_the_manifest_reads(dataset: Manifest) -> None:
    import webdataset as wds
    stock = wds.WebDataset([str(dataset.folder / shard.name) for shard in dataset.shards], shardshuffle=False)
    read = [{ext: sample[ext] for ext in dataset.fields} | {"key": sample["__key__"]} for sample in stock]
    assert read == [dataset.read(index) | {"key": f"{index:09d}"} for index in range(SAMPLES)]


@pytest.mark.parametrize(("readers", "count"), [(1, 4), (2, 8), (100, SAMPLES)])
def test_four_shards_a_reader_where_large_ones_would_be_fewer(tmp_path: Path, readers: int, count: int) -> None:
    made = shards.write(tmp_path / "set", sample, SAMPLES, readers=readers, progress=False)
    counts = [shard.samples for shard in made.shards]
    assert len(counts) == count and sum(counts) == SAMPLES and max(counts) - min(counts) <= 1


def test_shards_have_about_the_wanted_size(tmp_path: Path) -> None:
    made = shards.write(tmp_path / "set", sample, SAMPLES, readers=1, shard_mb=0.05, progress=False)
    assert abs(np.mean([shard.size for shard in made.shards]) / 2**20 - 0.05) < 0.015


def test_a_finished_dataset_is_left_alone(copied: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.iterdir()}
    assert make(copied).samples == SAMPLES
    assert {path: path.stat().st_mtime_ns for path in copied.iterdir()} == before
    with pytest.raises(LfError, match="copied already holds a dataset made with seed = 0, not 1; give the same"):
        make(copied, seed=1)


def test_unfinished_work_is_continued_with_the_same_settings_alone(tmp_path: Path) -> None:
    with pytest.raises(LfError, match="sample 11 can't be made: ZeroDivisionError: no scene"):
        shards.write(tmp_path / "set", failing_sample, SAMPLES, readers=1, progress=False)
    with pytest.raises(LfError, match=r"set.building is an unfinished dataset made with shard_mb = 1024.0, not 1.0;"):
        make(tmp_path / "set", shard_mb=1)
    assert make(tmp_path / "set").samples == SAMPLES


def test_an_error_in_a_writer_process_is_the_same_sentence(tmp_path: Path) -> None:
    with pytest.raises(LfError, match=r"^sample 11 can't be made: ZeroDivisionError: no scene$"):
        shards.write(tmp_path / "set", failing_sample, SAMPLES, readers=1, jobs=2, progress=False)
    assert not (tmp_path / "set").exists() and not list((tmp_path / ".set.building").rglob("*.tmp"))


def test_a_folder_with_other_things_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    make(tmp_path / "photos")  # empty: fine
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("keep")
    with pytest.raises(LfError, match=r"notes exists and is not one of our datasets"):
        make(tmp_path / "notes")
    assert os.listdir(tmp_path / "notes") == ["todo.txt"]


def test_two_calls_do_not_write_one_folder(tmp_path: Path, writing: Writing) -> None:
    writing(1)
    with pytest.raises(LfError, match=r"another process is writing .*set.building"):
        make(tmp_path / "set")


@pytest.mark.parametrize(("members", "sentence"), [
    ({"a.jpg": b"x", "B.txt": b"x"}, "sample 0: 'B.txt' is no member name"),
    ({"a/b": b"x"}, "sample 0: 'a/b' is no member name"),
    ({"bild.ä": b"x"}, "sample 0: 'bild.ä' is no member name"),
    ({"jpg": b"x", "txt": b""}, "sample 0: member 'txt' is empty; give bytes, at least one"),
    ({"jpg": "text"}, "sample 0: member 'jpg' is str; give bytes"),
    ({}, "sample 0 has the members none"),
])
def test_what_readers_would_misread_is_not_packed(tmp_path: Path, members: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(LfError, match=sentence):
        shards.write(tmp_path / "set", lambda index: members, 3, progress=False)


def test_every_sample_needs_the_same_members() -> None:
    with pytest.raises(LfError, match="sample 1 has the members txt, jpg, the first one has jpg, txt"):
        tar.members(lambda index: {"txt": b"1", "jpg": b"2"}, 1, ["jpg", "txt"])


@pytest.mark.parametrize("options", [{"samples": 0}, {"jobs": 0}, {"readers": 0}, {"shard_mb": 0}])
def test_impossible_numbers_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(LfError, match=next(iter(options))):
        shards.write(tmp_path / "set", sample, **{"samples": 3} | options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_folder_without_rights_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LfError, match=r"file/set can't be written: Not a directory"):
        make(tmp_path / "file" / "set")


def test_the_bar_is_silent_without_a_terminal_unless_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards.write(tmp_path / "silent", sample, 9)
    assert capsys.readouterr().err == ""
    shards.write(tmp_path / "loud", sample, 9, progress="always")
    assert "9/9" in capsys.readouterr().err
