"""However a job's parents die, nothing of it stays: real 2-rank jobs, each ended in another way."""

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lfhelpers import runs
from lfhelpers.launch import supervisor as rules
from lfhelpers.processes import Member, end_tree
from tests.launch.jobs import belonging, left_after, supervisor_of, until, working

LAUNCH = """
import os, sys, time
from lfhelpers.launch import launch, start
from lfhelpers.recipe import recipe
job = recipe(device="cpu", name=sys.argv[1])
if job.name == "forked":
    started = start(job, 2, module="ranks.sleeper", args=sys.argv[2:])
    if os.fork() == 0:
        os.closerange(0, 3)
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.1)
        time.sleep(10)
        os._exit(0)
    started.wait()
launch(job, 2, module="ranks.sleeper", args=sys.argv[2:])
"""
# name: (arguments of the ranks, who gets the signal, the signal)
CASES = {
    "kill": ([], "launcher", signal.SIGKILL),
    "forked": ([], "launcher", signal.SIGKILL),  # a child of the launcher lives on and holds the job's pipe open
    "term": ([], "launcher", signal.SIGTERM),
    "stop": ([], "launcher", signal.SIGINT),
    "told": ([], "supervisor", signal.SIGTERM),
    "supervisor": (["--child", "dying"], "supervisor", signal.SIGKILL),
    "torchrun": ([], "torchrun", signal.SIGKILL),
    "stubborn": (["--ignore-term"], "launcher", signal.SIGKILL),
}


@pytest.fixture(scope="module")
def launchers(place: Path):
    """A launcher of its own for each case, all at work."""
    started = {name: subprocess.Popen([sys.executable, "-c", LAUNCH, name, *case[0]], stdout=subprocess.PIPE, text=True)
               for name, case in CASES.items()}
    try:
        until(lambda: len(runs.find()) == len(CASES) and all(working(run) for run in runs.find()), *started.values())
        yield {run.recipe.name: (started[run.recipe.name], run) for run in runs.find()}
    finally:
        for launcher in started.values():
            launcher.kill()
            launcher.wait()


def pid_of(who: str, launcher: subprocess.Popen, supervisor: Member) -> int:
    if who == "torchrun":
        return int(subprocess.check_output(["pgrep", "-P", str(supervisor.pid)]))
    return launcher.pid if who == "launcher" else supervisor.pid


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left(launchers, name, record_property, capsys):
    launcher, run = launchers[name]
    _, who, number = CASES[name]
    supervisor = supervisor_of(run)
    # supervisor, torchrun, two ranks, and a worker of each
    assert len(belonging(run)) == 6
    os.kill(pid_of(who, launcher, supervisor), number)
    left, took = left_after(run, None if name == "supervisor" else supervisor)
    record_property("seconds", took)
    with capsys.disabled():
        print(f"\n{name}: {who} got {number.name}, all processes ended after {took:.2f} s")
    assert left == set()
    said = launcher.communicate()[0].splitlines()
    state = {"torchrun": "failed"}.get(name, "stopped")
    assert run.status["state"] == state
    if name == "stop":
        assert said[-1] == f"stopped at step {run.steps()[-1]['step']}"
        assert run.status["reason"] == "the supervisor got SIGINT"
    elif who == "launcher":
        assert run.status["reason"] == "the process that launched it is gone"
    elif name == "told":
        assert run.status["reason"] == "the supervisor got SIGTERM"
    elif who == "torchrun":
        assert run.status["reason"] == "torchrun was killed (signal 9), often out of memory"
    assert launcher.returncode == (-number if who == "launcher" else 1)


def test_the_rules_leave_less_than_five_seconds():
    kill = inspect.signature(end_tree).parameters["kill"].default
    assert rules.GRACE + kill < 5, "a signal, or the end of the launcher's pipe, wakes the supervisor at once"
    assert rules.LOOK + rules.GRACE < 5, "where only its next look tells, and KILL ends the rest"
