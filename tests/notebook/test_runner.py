"""The runner plays what isn't fresh, stops at the first failure, and its exit code and pages tell what happened."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest

from lfhelpers.data.locks import Locked
from lfhelpers.errors import LfError
from lfhelpers.notebook import html, runner
from lfhelpers.processes import Member
from tests.launch.jobs import until
from tests.notebook.lessons import code, lesson, save

GOOD = [
    'record("speed", 2.5 * steps, "samples/s")',
    "from lfhelpers.notebook import check, say, show, solution, step_bars",
    'show(*step_bars({"run": {"data_wait": 60, "forward": 40}}))\nsay("It runs at {speed}.")',
    code("answer = ...  # the largest part", "exercise"),
    code('answer = solution(answer, "data_wait")', "solution", folded=True),
    'check("1", answer, lambda a: a == "data_wait", hint="Which segment is widest?", why="It fills most of the bar.")',
]


PLAY = """from pathlib import Path
from lfhelpers.notebook.runner import play
raise SystemExit(play(folder=Path({folder!r}), out=Path({out!r}), profile="smoke"))"""


def playing(folder, out):
    """Another process that plays all of `folder` into `out`."""
    return subprocess.Popen([sys.executable, "-c", PLAY.format(folder=str(folder), out=str(out))], text=True,
                            stdout=subprocess.PIPE)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "notebooks"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package of one file stands for lfhelpers in the key, which a developer may be editing while this runs."""
    path = tmp_path / "package" / "module.py"
    path.parent.mkdir()
    path.write_text("x = 1\n")
    monkeypatch.setattr(runner, "PACKAGE", path.parent)
    return path


def status(out, name):
    return json.loads((out / name / "status.json").read_text())


def test_a_notebook_is_played_shown_offline_and_played_again_only_when_something_changed(folder, out, capsys):
    save(folder, "00_good", lesson(*GOOD))
    assert runner.play(None, {"steps": "8"}, folder=folder, out=out, profile="smoke") == 0
    first = status(out, "00_good")
    assert (first["state"], first["parameters"]) == ("done", {"steps": 8, "profile": "smoke"})
    for name in ("00_good.html", "report.html"):
        page = (out / "00_good" / name).read_text()
        assert html.external_loads(page) == []
        assert 'alt="Largest part of the step: run spends 60 % on data wait."' in page
        assert "It runs at 20 samples/s." in page
        assert "solution(answer" not in page
    assert "20</b> samples/s" in (out / "index.html").read_text()
    told = json.loads((out / "playbook.json").read_text())
    assert (told["state"], told["exit_code"], told["asked_for"]) == ("done", 0, ["00_good"])
    assert told["notebooks"][0]["results"][0]["value"] == 20.0

    assert runner.play(None, {"steps": "8"}, folder=folder, out=out, profile="smoke") == 0
    assert status(out, "00_good") == first
    assert "00_good  fresh, not played again" in capsys.readouterr().out

    save(folder, "00_good", lesson('record("speed", 1.0 * steps)'))
    assert runner.play(["00"], ["steps=8"], folder=folder, out=out, profile="smoke") == 0
    assert status(out, "00_good")["key"] != first["key"]


def test_a_failing_cell_stops_the_playbook_and_leaves_the_copy_with_its_error(folder, out, capsys):
    save(folder, "00_bad", lesson('record("speed", 1.0)', 'raise ValueError("the loader stalls")', "print('later')"))
    save(folder, "01_next", lesson('record("speed", 1.0)'))
    assert runner.play(None, folder=folder, out=out, profile="smoke") == 1
    printed = capsys.readouterr().out
    assert "00_bad  failed in cell 5 (raise ValueError" in printed and "ValueError: the loader stalls" in printed
    assert not (out / "01_next" / "status.json").exists()
    copy = nbformat.read(out / "00_bad" / "00_bad.ipynb", as_version=4)
    outputs = [output for cell in copy.cells for output in cell.get("outputs", [])]
    assert [output.evalue for output in outputs if output.output_type == "error"] == ["the loader stalls"]
    page = (out / "index.html").read_text()
    assert "✘ failed" in page and "cell 5: ValueError: the loader stalls" in page and "· not played" in page
    told = json.loads((out / "playbook.json").read_text())
    assert (told["state"], told["exit_code"]) == ("failed", 1)
    assert [entry["state"] for entry in told["notebooks"]] == ["failed", "not played"]

    assert runner.play(None, folder=folder, out=out, profile="smoke", keep_going=True) == 1
    assert [status(out, name)["state"] for name in ("00_bad", "01_next")] == ["failed", "done"]


def test_a_folder_that_another_call_plays_into_has_an_exit_code_of_its_own(folder, out, command):
    path = save(folder, "00_good", lesson(*GOOD))
    out.mkdir()
    with Locked(out / runner.LOCK, os.O_RDWR | os.O_CREAT) as lock:
        assert lock.exclusive()
        code, _, said = command("playbook", path, "--profile", "smoke", "--out", out)
    assert code == 75 and "plays into" in said and "give another folder with --out" in said
    assert not (out / "playbook.json").exists(), "the other call's pages are left alone"


def test_a_limit_that_leaves_no_time_and_a_name_given_twice_are_refused(folder, out):
    first, second = save(folder, "00_good", lesson(*GOOD)), save(folder.parent, "00_good", lesson(*GOOD))
    with pytest.raises(LfError, match="timeout = 0 leaves no time"):
        runner.play(None, folder=folder, out=out, profile="smoke", timeout=0)
    with pytest.raises(LfError, match="two notebooks of one name would share a folder"):
        runner.play([str(first), str(second)], out=out, profile="smoke")
    assert not out.exists()


def test_sigterm_ends_the_cell_and_its_children_and_keeps_the_copy(folder, out):
    # A child that ends when its stdin closes, as the jobs of launch do.
    job = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
record("speed", child.pid)
child.wait()"""
    save(folder, "00_long", lesson(job))
    runner_process = playing(folder, out)
    results = out / "00_long" / "results.json"
    while not (results.exists() and json.loads(results.read_text())["results"]):
        assert runner_process.poll() is None
        time.sleep(0.1)
    child = Member.of(json.loads(results.read_text())["results"][0]["value"])
    assert child.alive
    runner_process.send_signal(signal.SIGTERM)
    assert runner_process.wait() == 130
    until(lambda: not child.alive)
    assert status(out, "00_long")["state"] == "interrupted"
    assert "the runner was interrupted" in (out / "00_long" / "00_long.ipynb").read_text()


@pytest.mark.parametrize(("given", "sentence"), [
    ({"stepps": "8"}, "notebook 00_good has no parameter 'stepps'; did you mean 'steps'?"),
    ({"steps": "many"}, "notebook 00_good: parameter 'steps' takes int, not 'many'; for example steps=50."),
    ({"profile": "fast"}, "profile 'fast' does not exist; take auto, smoke or gpu."),
])
def test_a_wrong_parameter_is_refused_before_anything_runs(folder, out, given, sentence):
    save(folder, "00_good", lesson(*GOOD))
    with pytest.raises(LfError) as caught:
        runner.play(None, given, folder=folder, out=out)
    assert str(caught.value) == sentence
    assert not out.exists()


def test_a_place_that_cant_be_written_is_a_sentence(folder, tmp_path):
    save(folder, "00_good", lesson(*GOOD))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LfError, match=r"results can't be kept in .*file.*; make room, or give another place"):
        runner.play(None, folder=folder, out=tmp_path / "file" / "out", profile="smoke")


def test_the_key_changes_with_notebook_parameters_and_package(tmp_path, package):
    path = save(tmp_path, "00_lesson", lesson("1"))
    keys = [runner.key(path, {"steps": 1}), runner.key(path, {"steps": 2})]
    package.write_text("x = 2\n")
    keys.append(runner.key(path, {"steps": 2}))
    save(tmp_path, "00_lesson", lesson("2"))
    keys.append(runner.key(path, {"steps": 2}))
    assert len(set(keys)) == 4
    assert runner.key(path, {"steps": 2}) == keys[-1]


def test_playbooks_at_once_keep_apart_and_a_killed_one_is_continued(folder, out, tmp_path):
    waits = "import time\nfrom pathlib import Path\n\nwhile not Path('go').exists():\n    time.sleep(0.05)"
    save(folder, "00_good", lesson('record("speed", 1.0)'))
    save(folder, "01_long", lesson('record("speed", 1.0)', waits))  # a kernel starts in its notebook's folder
    other = tmp_path / "other"
    with playing(folder, out) as first, playing(folder, other) as second:
        while not all((place / "01_long" / "results.json").exists() for place in (out, other)):
            assert first.poll() is None and second.poll() is None
            time.sleep(0.05)
        with pytest.raises(runner.Busy, match=f"process {first.pid} on .* plays into .*; wait for its end, or give an"):
            runner.play(None, folder=folder, out=out, profile="smoke")
        first.kill()
        (folder / "go").touch()
        second.communicate()
    assert second.returncode == 0 and status(other, "01_long")["state"] == "done"
    assert status(out, "01_long")["state"] == json.loads((out / "playbook.json").read_text())["state"] == "running"
    with playing(folder, out) as again:
        said = again.stdout.read()
    assert again.returncode == 0 and status(out, "01_long")["state"] == "done"
    assert "00_good  fresh, not played again" in said and "01_long  playing" in said
