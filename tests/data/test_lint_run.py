"""How a lint runs: any number of processes, a bar, one sentence where it can't, a report for people and programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lfhelpers.data.lint import lint, pool
from lfhelpers.errors import LfError
from lfhelpers.runs import project
from tests.data.broken_tars import pairs, tar
from tests.data.test_lint_repack import messy


def test_any_number_of_processes_finds_the_same(tmp_path: Path) -> None:
    for number in range(3):
        messy(tmp_path / str(number))
    alone = lint(tmp_path, "decode", jobs=1, progress=False)
    assert alone == lint(tmp_path, "decode", jobs=3, progress=False)
    assert alone == lint(sorted(tmp_path.rglob("*.tar")), "decode", progress=False)
    assert {finding.kind: finding.count for finding in alone.findings} == {
        "dotted_keys": 3 * 32,  # two keys of each copy lie in both of its shards
        "dup_across_shards": 28 * 2 + 2 * 5, "missing_members": 1,  # one in all three copies
        "not_adjacent": 3, "dup_in_shard": 3, "empty_members": 3, "side_files": 3, "unreadable_image": 3}


def test_what_is_read(tmp_path: Path) -> None:
    for name in ("b.tar", "sub/a.tar", ".set.building/c.tar", ".hidden.tar", "sub/notes.txt", "sub/x.tar.tmp"):
        tar(tmp_path / name, pairs(name.replace("/", "_").replace(".", "_")))
    report = lint(tmp_path, progress=False)
    assert report.shards == 2 and report.samples_read == 2 and report.findings == ()
    assert lint([tmp_path / "b.tar", tmp_path, tmp_path / "b.tar"], progress=False).shards == 2
    assert lint(str(tmp_path / "sub/x.tar.tmp"), progress=False).shards == 1  # by name: any file


def test_nothing_to_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LfError, match=r"^there is no file or folder .*/nowhere; give tars, or a folder that"):
        lint(tmp_path / "nowhere")
    with pytest.raises(LfError, match=r"^no tar is in .*; give tars, or a folder that holds files named \*\.tar, "):
        lint(tmp_path)
    with pytest.raises(LfError, match=r"^jobs = 0 can't be worked with; give 1 or more\.$"):
        lint(tar(tmp_path / "a.tar", pairs("a")), jobs=0)


def test_the_report_for_people_and_for_programs(tmp_path: Path) -> None:
    sound = pairs(*(f"k{number}" for number in range(9)))
    path = tar(tmp_path / "set.tar", [*sound, ("README", b"x"), ("k8.jpg", b"")])
    report = lint(path, progress=False)
    assert report.table().splitlines() == [
        "1 shards, 20 members, 0.00 GB; a sample has jpg, txt",
        "samples: 9 in the set, 9 as readers see it",
        "error   dup_in_shard: 1",
        "        what: webdataset stops, or keeps the first; DALI keeps the first with a warning",
        "        examples: set.tar:k8.jpg",
        "        fix: write a clean copy: lfhelpers data lint PATHS --repack OUT",
        "error   empty_members: 1",
        "        what: 0 bytes: DALI can't tell them from missing ones (jpg: 1)",
        "        examples: set.tar:k8.jpg",
        "        fix: write a clean copy: lfhelpers data lint PATHS --repack OUT",
        "error   side_files: 1",
        "        what: they belong to no sample; one without extension, or hidden in a folder, splits the sample "
        "around",
        "          it (without extension: 1)",
        "        examples: set.tar:README",
        "        fix: write a clean copy: lfhelpers data lint PATHS --repack OUT",
    ]
    assert [(row["kind"], row["severity"], row["count"]) for row in report.rows()] == [
        ("dup_in_shard", "error", 1), ("empty_members", "error", 1), ("side_files", "error", 1)]
    assert report.count("dup_in_shard") == 1 and report.count("pax_names") == 0


def test_a_bar_only_where_somebody_sees_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lint(tar(tmp_path / "a.tar", pairs("a")))
    assert capsys.readouterr().err == ""
    code = f'from lfhelpers.data.lint import lint; lint("{tmp_path}", jobs=1)'
    command = ["script", "-qec", f"stty cols 100 rows 30; {sys.executable} -c '{code}'", "/dev/null"]
    done = subprocess.run(command, cwd=project(), capture_output=True, text=True)
    assert "reading: 100%" in done.stdout and "10.2k/10.2k" in done.stdout


def sleepy(path: Path, progress: pool.Progress) -> str:
    """Work that tells its pid and goes on until it is stopped."""
    path.with_suffix(".pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.02)
        progress(1)


def test_a_killed_worker_is_one_sentence(tmp_path: Path) -> None:
    code = f"""
import os, signal, threading, time
from pathlib import Path
from lfhelpers.data.lint import pool
from tests.data.test_lint_run import sleepy

def kill():
    while not (pid := Path("{tmp_path}/a.pid")).exists() or not pid.read_text():
        time.sleep(0.02)
    os.kill(int(pid.read_text()), signal.SIGKILL)

if __name__ == "__main__":
    threading.Thread(target=kill).start()
    pool.each(sleepy, [(Path("{tmp_path}/a"),), (Path("{tmp_path}/b"),)], [1, 1], 2, "sleeping", False)
"""
    (tmp_path / "main.py").write_text(code)
    done = subprocess.run([sys.executable, str(tmp_path / "main.py")], cwd=project(), capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(project())}, timeout=60)
    assert "LfError: a worker process was killed by signal 9, most likely for want of memory; give fewer" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path: Path, signum: int) -> None:
    code = f"""
from pathlib import Path
from lfhelpers.data.lint import pool
from tests.data.test_lint_run import sleepy

if __name__ == "__main__":
    pool.each(sleepy, [(Path("{tmp_path}/a"),), (Path("{tmp_path}/b"),)], [1, 1], 2, "sleeping", False)
"""
    (tmp_path / "main.py").write_text(code)
    process = subprocess.Popen([sys.executable, str(tmp_path / "main.py")], cwd=project(), stderr=subprocess.DEVNULL,
                               env=os.environ | {"PYTHONPATH": str(project())})
    while not all((tmp_path / f"{name}.pid").exists() for name in "ab"):
        assert process.poll() is None
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    process.send_signal(signum)
    assert process.wait(timeout=30) != 0
    assert not psutil.wait_procs(family, timeout=15)[1]
