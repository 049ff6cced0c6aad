"""Run folders: created whole or not at all, readable at any moment, found by a part of their name."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe


@pytest.fixture(autouse=True)
def own_root(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "runs"))


def test_a_new_run_holds_its_recipe_and_is_found_by_a_part_of_its_name():
    run = runs.create(recipe("as_found", steps=7))
    assert run.recipe == recipe("as_found", steps=7)
    assert runs.load(run.id[-4:]).path == run.path
    assert [found.id for found in runs.find()] == [run.id]
    assert {path.name for path in run.path.iterdir()} == {"recipe.toml", "logs", "traces", "checkpoints"}


def test_steps_are_whole_lines_even_after_a_kill():
    run = runs.create(recipe())
    run.append_steps([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}])
    with (run.path / "steps.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert [row["step"] for row in run.steps()] == [1, 2]
    run.truncate_steps(1)
    assert (run.path / "steps.jsonl").read_text() == '{"step":1,"loss":2.0}\n'


def test_a_running_run_whose_process_is_gone_reads_as_stopped():
    run = runs.create(recipe())
    assert run.status["state"] == "stopped"
    run.set_status("running", pid=os.getpid())
    assert run.status["state"] == "running"
    gone = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    gone.stdout.read()
    while psutil.Process(gone.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    run.set_status("running", pid=gone.pid)
    assert (run.status["state"], "killed" in run.status["reason"]) == ("stopped", True), "a zombie has ended"
    gone.wait()
    assert run.status["state"] == "stopped"


def test_a_write_that_fails_leaves_the_old_file(monkeypatch, tmp_path):
    path = tmp_path / "summary.json"
    runs.write_atomic(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        runs.write_atomic(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir() if item.is_file()] == ["summary.json"]


def test_a_full_disk_is_one_sentence_and_costs_no_line(monkeypatch):
    run = runs.create(recipe())
    run.append_steps([{"step": 1}])
    run.write("probe.json", {"step": 1})
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(LfError, match=r"probe\.json can't be written: No space left on device"):
        run.write("probe.json", {"step": 2})
    assert run.read("probe.json") == {"step": 1} and run.steps() == [{"step": 1}]


def test_a_folder_that_fails_halfway_leaves_nothing(tmp_path):
    def fill():
        with runs.new_folder(tmp_path / "checkpoint") as folder:
            (folder / "half").write_bytes(b"x")
            raise OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(LfError, match=r"no run folder can be made in .*LFHELPERS_RUNS"):
        runs.create(recipe())


def test_a_folder_that_is_being_built_is_no_run_yet(tmp_path):
    run = runs.create(recipe())
    with runs.new_folder(runs.root() / "later") as building:
        (building / "recipe.toml").write_text(recipe().to_toml())
        assert runs.find() == [run]


def test_unknown_and_ambiguous_names():
    with pytest.raises(LfError, match="there is none yet"):
        runs.load("nothing")
    runs.create(recipe("competent"))
    runs.create(recipe("competent"))
    with pytest.raises(LfError, match="names 2 runs"):
        runs.load("competent")
