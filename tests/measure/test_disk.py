"""Disk speed on real files: figures with their worth, nothing left behind, and one sentence where it can't be had."""

import errno
import os
from pathlib import Path

import pytest

from lfhelpers.errors import LfError
from lfhelpers.measure import disk


def test_both_kinds_of_reads_are_measured_and_nothing_is_left(tmp_path):
    speed = disk.read_speed(tmp_path, seconds=0.3)
    assert speed.sequential_mb_s > 0
    assert speed.random_mb_s == pytest.approx(speed.random_iops * disk.SMALL / 1e6, rel=0.01, abs=0.1)
    assert speed.cache in ("bypassed", "dropped", "in use")
    assert 16 <= speed.file_mb <= 256
    assert list(tmp_path.iterdir()) == []


def test_without_direct_reads_it_says_how_far_the_cache_was_kept_out(tmp_path, monkeypatch):
    really_open = os.open

    def refuses_direct(path, flags, *more, **options):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really_open(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuses_direct)
    speed = disk.read_speed(tmp_path, seconds=0.3)
    assert speed.cache in ("dropped", "in use")
    assert speed.random_iops > 0


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no memory file system on this machine")
def test_a_file_system_in_memory_is_called_so():
    speed = disk.read_speed("/dev/shm", seconds=0.1)
    assert (speed.cache, speed.filesystem) == ("in use", "tmpfs")


def test_a_missing_folder_or_a_file_is_one_sentence(tmp_path):
    with pytest.raises(LfError, match=r"speed of .*/none can't be measured: No such file or directory; give a folder"):
        disk.read_speed(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(LfError, match="Not a directory"):
        disk.read_speed(tmp_path / "file")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LfError, match="No space left on device"):
        disk.read_speed(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors, "no open file is left either"
