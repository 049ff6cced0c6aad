"""Jobs through a real Slurm of one node: they train, are cancelled, leave before a time limit, and go on after it."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from lfhelpers import processes, runs
from lfhelpers.errors import LfError
from lfhelpers.launch import slurm
from lfhelpers.launch.crew import Crew
from lfhelpers.launch.hosts import Place
from lfhelpers.launch.slurm import Request, job_of, place_of, script, submit, wait
from lfhelpers.launch.watch import last_step
from lfhelpers.recipe import recipe
from lfhelpers.train.leave import Leave
from lfhelpers.train.ranks import Ranks
from tests.launch.jobs import belonging, until, working
from tests.launch.slurm_cluster import cluster, obstacle
from tests.train.toy import ALONE

JOB = recipe(device="cpu", steps=2000)
ONE = Request(per_node=2, gpus=False, time="10")
SLOW_AT_FIRST = '''
import os, time
from lfhelpers.train import leave
from tests.train.toy import Toy

leave.EVERY = 0.5

class SlowAtFirst(Toy):
    """A job that would outlast its limit, until Slurm has started it again."""

    def loss(self, model, batch, draws):
        if "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(0.1)
        return super().loss(model, batch, draws)
'''


# ---- what needs no Slurm


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "runs"))
    return runs.create(JOB)


def test_the_script_asks_for_what_was_wanted_and_passes_signals_on(run):
    lines = script(run, Request(nodes=4, per_node=8, time="2-00:00:00", cpus=96)).splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert asked[1:] == [
        "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--cpus-per-task=96", "--time=2-00:00:00", "--requeue",
        "--signal=B:USR1@120", "--open-mode=append", f"--output={run.path}/logs/slurm.log", f"--chdir={os.getcwd()}"]
    (srun,) = [line for line in lines if line.startswith("srun ")]
    assert srun.startswith("srun --ntasks-per-node=1 --cpus-per-task=96 ")
    assert srun.endswith(f"-m lfhelpers.launch.slurm --nproc 8 {run.path} lfhelpers.train &")
    assert "trap 'kill -USR1 $ranks' USR1" in lines and '  scontrol requeue "$SLURM_JOB_ID" && sleep 60' in lines
    assert subprocess.run(["bash", "-n"], input="\n".join(lines), text=True).returncode == 0


def test_without_gpus_or_requeue_neither_is_asked_for(run):
    text = script(run, Request(gpus=False, requeue=False))
    assert "--gpus" not in text and "--no-requeue" in text and "scontrol requeue" not in text


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal by now."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), flags=re.MULTILINE)[1]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (1, False), (processes.LEFT, True)])
def test_the_scripts_end(run, tmp_path, code, requeued):
    """With stand-ins for Slurm: USR1 reaches srun, whose exit code becomes the script's, and 75 alone is requeued."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "srun").write_text(f"#!/bin/bash\ntrap 'echo told; exit {code}' USR1\ntouch {tmp_path}/up\n"
                              "while :; do sleep 0.05; done\n")
    (bin / "scontrol").write_text("#!/bin/bash\necho scontrol $*; exit 1\n")  # requeued jobs are not allowed here
    for file in bin.iterdir():
        file.chmod(0o755)
    batch = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"})
    batch.stdin.write(script(run, ONE))
    batch.stdin.close()
    until((tmp_path / "up").exists, batch)
    until(lambda: catches(batch.pid, signal.SIGUSR1), batch)
    batch.send_signal(signal.SIGUSR1)
    said = batch.stdout.read()
    assert batch.wait() == code
    assert said.splitlines() == ["told", *(["scontrol requeue 7"] if requeued else [])]


def test_a_hosts_place_is_read_from_slurms_variables(monkeypatch):
    monkeypatch.setattr(slurm, "_asked", lambda command: "n1\nn2\nn3\n" if command[-1] == "n[1-3]" else "")
    given = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": "12345", "SLURM_NODEID": "2", "SLURM_RESTART_COUNT": "1"}
    assert place_of(given) == Place(("n1", "n2", "n3"), 2, 20345, "slurm-12345-1")
    alone = {"SLURM_JOB_NODELIST": "n7", "SLURM_JOB_ID": "5", "SLURM_NODEID": "0"}
    assert place_of(alone) == Place(("n7",), 0, None, "slurm-5-0")


def test_without_slurm_it_is_one_sentence(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LfError, match=r"^sbatch is not here: run this where Slurm's commands are installed\.$"):
        submit(JOB, ONE, module="never.started")
    assert runs.find()[-1].status["reason"].startswith("sbatch is not here")
    with pytest.raises(LfError, match="was not submitted to Slurm"):
        wait(run)


def test_ranks_are_asked_at_agreed_steps_alone(tmp_path, monkeypatch):
    assert not Leave(ALONE).agreed(1), "a job without a limit never leaves"
    monkeypatch.setenv(processes.LEAVE, str(tmp_path / "leave"))
    leave = Leave(Ranks(0, 1, ALONE.device), 10)
    (tmp_path / "leave").touch()
    assert leave.agreed(11)
    (tmp_path / "leave").unlink()
    monkeypatch.setattr("lfhelpers.train.leave.EVERY", 0.0)
    assert not leave.agreed(12 if leave._next <= 12 else leave._next)
    with pytest.raises(SystemExit) as end:
        leave.now()
    assert end.value.code == processes.LEFT == 75


def test_a_run_on_another_machine_lives_by_its_words(run):
    run.set_status("running", pid=1, host="another.machine")
    assert (run.status["state"], run.status["reason"]) == ("stopped", "the job's process is gone; it was killed")
    Crew(run, Place(("another.machine",), 0, None, "s")).look()
    assert run.status["state"] == "running"
    os.utime(run.path / "hosts" / "0.json", (0, 0))
    assert run.status["state"] == "stopped"


# ---- a real Slurm


@pytest.fixture(scope="module")
def slurm_place(tmp_path_factory):
    """A started Slurm, and a folder of runs; skipped with the reason where it can't be."""
    if why := obstacle():
        pytest.skip(why)
    with cluster() as environment, pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("slurm")
        for key, value in environment.items():
            patch.setenv(key, value)
        patch.setenv("LFHELPERS_RUNS", str(folder / "runs"))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        patch.setattr(slurm, "LOOK", 0.2)
        yield folder


@pytest.fixture(scope="module")
def jobs(slurm_place, toy):
    """Two jobs at once: one that will be told of its limit, one that will be cancelled."""
    workload = slurm_place / "slow.py"
    workload.write_text(SLOW_AT_FIRST)
    limited = submit(toy.with_(**{"workload.use": f"{workload}:SlowAtFirst", "steps": 200}), ONE)
    return {"limited": limited, "cancelled": submit(JOB, ONE, module="ranks.sleeper")}


def ask(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_scancel_is_reported_as_stopped(jobs):
    run = jobs["cancelled"]
    until(lambda: working(run))
    assert run.status["state"] == "running"
    ask("scancel", str(job_of(run)))
    assert wait(run).status["state"] == "stopped"
    assert run.status["reason"] == "the supervisor got SIGTERM"
    assert belonging(run) == set()


def test_before_its_limit_a_job_saves_leaves_is_queued_again_and_goes_on(jobs):
    """The signal is the one that --signal=B:USR1@120 sends; Slurm counts limits in minutes."""
    run = jobs["limited"]
    number = str(job_of(run))
    until(lambda: last_step(run) >= 3)
    ask("scancel", "--batch", "--signal=USR1", number)
    until(lambda: run.read("status.json")["reason"].startswith("left before"))
    (left,) = re.findall(r"^left before the time limit, with a checkpoint of step (\d+)$", run.status["reason"])
    assert 3 <= int(left) < 200
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == [f"step-{int(left):08d}"]
    status = wait(run).status  # Slurm has begun it once more
    assert (status["state"], status["reason"]) == ("done", "")
    assert [row["step"] for row in run.steps()] == list(range(1, 201))
    assert (run.path / "logs" / "rank-0.log").read_text().count("--- rank 0 of 2") == 2
    assert run.summary["steps"]["applied"] == 200 - int(left)


def test_a_job_cancelled_in_the_queue_is_stopped(slurm_place):
    run = submit(JOB, Request(gpus=False, options=("--hold",)), module="never.started")
    assert run.status["reason"] == "waits in Slurm's queue"
    ask("scancel", str(job_of(run)))
    wait(run)
    assert (run.status["state"], run.status["reason"]) == ("stopped", f"Slurm job {job_of(run)} ended: cancelled")


def test_the_command_line_submits_and_follows(slurm_place, toy, tmp_path, command):
    (tmp_path / "toy.toml").write_text(toy.to_toml())
    code, out, err = command("launch", f"recipe={tmp_path / 'toy.toml'}", "--slurm", "--nproc", 2, "--time", "5",
                             "--sbatch=--hold")
    assert (code, err) == (0, "")
    run = runs.find()[-1]
    assert f"Slurm job {job_of(run)}; follow it with: lfhelpers watch {run.id}" in out.splitlines()
    assert "#SBATCH --time=5" in (run.path / "slurm.sh").read_text()
    ask("scancel", str(job_of(run)))
    code, out, err = command("watch", run.id)
    assert code == 0 and "stopped at step 0/12: waits in Slurm's queue" in out
    assert run.status["reason"].endswith("ended: cancelled")


def test_a_refusal_is_slurms_own_sentence(slurm_place):
    with pytest.raises(LfError, match=r"Slurm refused: .*[Ii]nvalid partition"):
        submit(JOB, Request(gpus=False, options=("--partition=none",)), module="never.started")
