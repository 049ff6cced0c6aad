"""The dashboard over real processes: Run, Stop, joining a job that another process started, and what goes wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.launch import start, stop
from lfhelpers.notebook.widgets_run import Dashboard, command_of, dashboard, running
from lfhelpers.recipe import recipe
from tests.launch.jobs import left_after, supervisor_of, until, working

SLEEPER = recipe(device="cpu", steps=10_000)
ELSEWHERE = """
from lfhelpers.launch import launch
from lfhelpers.recipe import recipe
launch(recipe(device="cpu"), 2, module="ranks.sleeper")
"""


@pytest.fixture
def ranks(runs_root, monkeypatch):
    """A folder of runs, and scripts that ranks can import."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "launch"), prepend=os.pathsep)


def test_run_and_stop_of_two_ranks(ranks):
    board = Dashboard(lambda: start(SLEEPER, 2, module="ranks.sleeper"), "a command")
    assert board.stop_button.disabled and not board.run_button.disabled
    board.run_button.click()
    board.run_button.click()  # while it starts: nothing more
    (run,) = until(runs.find)
    until(lambda: "samples/s" in board.panel.value, run)
    supervisor = supervisor_of(run)
    assert runs.find() == [run] and board.run_button.disabled and not board.stop_button.disabled
    board.stop_button.click()
    until(lambda: "stopped" in board.panel.value and not board.run_button.disabled)
    assert left_after(run, supervisor)[0] == set() and run.status["state"] == "stopped"
    assert board.stop_button.disabled


def test_a_job_of_another_process_is_joined_and_can_be_stopped(ranks):
    other = subprocess.Popen([sys.executable, "-c", ELSEWHERE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        run = until(lambda: running("competent"), other)
        until(lambda: working(run), other)
        supervisor = supervisor_of(run)
        board = Dashboard(lambda: pytest.fail("it must not start another"), "a command")
        board.join(run)
        until(lambda: "samples/s" in board.panel.value, run)
        board.stop_button.click()
        until(lambda: run.status["state"] == "stopped")
        assert left_after(run, supervisor)[0] == set()
    finally:
        other.kill()
        other.wait()


def test_a_job_that_can_not_start_says_why_and_leaves_the_button():
    def refuse():
        raise LfError("the port 5 is taken; give another.")
    board = Dashboard(refuse, "a command")
    board.run_button.click()
    until(lambda: not board.run_button.disabled)
    assert "the port 5 is taken" in board.panel.value


def test_the_launcher_of_a_job_that_is_just_starting_is_not_ended(runs_root):
    run = runs.create(recipe())
    with subprocess.Popen(["sleep", "60"]) as bystander:
        run.set_status("running", "starting", pid=bystander.pid)
        told, left = stop(run), bystander.poll()
        bystander.kill()
    assert (told, left) == (False, None)


def test_without_anyone_at_the_buttons_the_command_and_the_run_stand_there(capsys):
    dashboard(recipe("as_found", "steps=7"), nproc=2, shown=runs.recorded("h200x1/as_found"))
    out = capsys.readouterr().out
    assert out.startswith("lfhelpers launch recipe=as_found steps=7 --nproc 2\nas_found: done: 50/50 steps")


@pytest.mark.parametrize(("job", "command"), [
    (recipe("full"), "lfhelpers launch recipe=full"),
    (recipe(name="mine", **{"data.workers": 0, "ddp.find_unused": True}),
     "lfhelpers launch recipe=competent name=mine data.workers=0 ddp.find_unused=true")])
def test_the_command_gives_the_same_recipe(job, command):
    assert command_of(job, 1) == command
    _, _, base, *words = command.split()
    assert recipe(base.removeprefix("recipe="), *words) == job
