"""The real runner, a real kernel and a real 2-rank job started from a cell: whatever ends the runner ends the ranks."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lfhelpers import runs
from tests.launch.jobs import belonging, left_after, supervisor_of, until, working
from tests.notebook.lessons import lesson, save

CELL = """import lfhelpers as lf
lf.launch(lf.recipe(device="cpu"), nproc=2, module="ranks.sleeper")
record("speed", 1.0)"""
RUNNER = """from pathlib import Path
from lfhelpers.notebook.runner import play
raise SystemExit(play(folder=Path({folder!r}), out=Path({out!r}), profile="smoke"))"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_runner_ends_a_two_rank_job(signum, tmp_path, runs_root, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "launch"), prepend=os.pathsep)
    save(tmp_path, "00_job", lesson(CELL))
    program = RUNNER.format(folder=str(tmp_path), out=str(tmp_path / "out"))
    runner = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    (run,) = until(runs.find, runner)
    until(lambda: working(run), runner)
    supervisor = supervisor_of(run)
    assert len(belonging(run)) == 6  # supervisor, torchrun, two ranks, a worker of each
    runner.send_signal(signum)
    left, took = left_after(run, supervisor)
    code = runner.wait()
    with capsys.disabled():
        print(f"\nrunner ended by {signum.name}: the job's processes ended after {took:.2f} s")
    assert left == set()
    assert code == (-signal.SIGKILL if signum == signal.SIGKILL else 130)
    assert run.status["state"] == "stopped"
