"""Real jobs through real torchrun: how they end, and what the user reads. They start together, to share the waiting."""

import gc
import signal
import subprocess
import sys
import warnings

import pytest

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.launch import Job, LaunchError, checks, launch, resumed, start, status_line
from lfhelpers.measure import formats
from lfhelpers.recipe import recipe
from tests.launch.jobs import until, working

JOB = recipe(device="cpu", steps=80, name="test")


@pytest.fixture(scope="module")
def jobs(place):
    """Five jobs at once: one that ends well, four that fail."""
    failing = ("raises", "exits", "killed", "sentence")
    started = {how: start(JOB, 2, module="ranks.failing", args=[how]) for how in failing}
    started["done"] = start(JOB, 2, module="ranks.sleeper", args=["--steps", "80", "--then", str(place / "seen")])
    yield started
    for job in started.values():
        job.stop()


def failure(job) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        job.wait()
    assert job.run.status["state"] == job.poll() == "failed"
    assert caught.value.run == job.run
    return caught.value


def test_a_job_runs_on_when_nobody_keeps_it_and_ends_done(jobs, place):
    run = jobs["done"].run
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jobs.pop("done")  # the pipe that keeps the supervisor going must outlive the dropped Job
        gc.collect()
    assert run.status["state"] == "running"
    until(lambda: working(run), run)  # logs are readable while it runs
    assert status_line(run).split("  ")[1:4] == ["loss 0.5000", "320.0 samples/s", "data wait 25 %"]
    (place / "seen").touch()
    until(lambda: run.status["state"] != "running")
    assert (run.status["state"], status_line(run)) == ("done", "done: 80/80 steps, loss 0.5000")
    header, first, *_ = (run.path / "logs" / "rank-1.log").read_text().splitlines()
    assert header.startswith("--- rank 1 of 2, pid ")
    assert "with 1 threads" in first  # set, so that torchrun neither warns nor guesses


def test_the_rank_that_raised_is_shown_not_the_one_that_lost_its_peer(jobs):
    error = failure(jobs["raises"])
    first, _, head, *_ = error.report.splitlines()
    assert (first, head) == ("rank 1 failed:", "Traceback (most recent call last):")
    assert "ranks/failing.py" in error.report and "RuntimeError: the tensor of rank 1 is wrong" in error.report
    assert "runpy" not in error.report and "onnection closed" not in error.report
    assert error._render_traceback_() == [error.report] == [str(error)]
    status = jobs["raises"].run.status
    assert (status["rank"], status["exit_code"]) == (1, 1)
    assert status["reason"] == "rank 1: RuntimeError: the tensor of rank 1 is wrong"


def test_a_rank_that_ends_without_a_word_is_named_with_its_code(jobs):
    error = failure(jobs["exits"])
    head, _, *lines = error.report.splitlines()
    assert head == "rank 1 exited with 137 (as after signal 9), often out of memory. Its last lines:"
    assert "met 2" in lines
    assert jobs["exits"].run.status["exit_code"] == 137


def test_a_killed_rank_is_named_with_the_signal(jobs):
    error = failure(jobs["killed"])
    assert jobs["killed"].run.status["reason"] == "rank 1 was killed (signal 9), often out of memory"
    assert error.report.splitlines()[:3] == [
        "rank 1 was killed (signal 9), often out of memory. Its last lines:", "", "the last words"]


def test_a_mistake_of_the_user_is_one_sentence(jobs):
    assert str(failure(jobs["sentence"])) == "recipe field batch.micro = 512 does not fit; take 256."


def test_a_run_goes_on_in_its_own_folder_on_a_given_port(place, capsys):
    run = launch(JOB, 1, module="ranks.sleeper", args=["--steps", "1"], port=checks.free_port())
    (run.path / "logs" / "torchrun" / "old").mkdir()
    with pytest.raises(LaunchError):
        launch(run.recipe, 1, resume=run.id, watch=False, module="ranks.failing", args=["sentence"])
    log = (run.path / "logs" / "rank-0.log").read_text()
    assert log.count("--- rank 0 of 1, pid ") == 2 and "step 1 " in log and "LfError" in log
    assert not (run.path / "logs" / "torchrun" / "old").exists()
    assert [found.id for found in runs.find()].count(run.id) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "done: 1/80 steps, loss 0.5000"


def test_a_run_is_resumed_by_its_own_recipe_or_by_one_that_means_the_same_here(place, monkeypatch):
    run = runs.create(JOB.with_("precision.mode=fp32"))
    run.set_status("stopped", "by hand")
    monkeypatch.setattr(formats, "cpu_flags", frozenset)
    assert resumed(run, JOB.with_("precision.mode=auto")).path == run.path
    other = r"another recipe \(precision.mode = fp32 there, bf16 here\); resume it with its"
    with pytest.raises(LfError, match=other):
        resumed(run, JOB.with_("precision.mode=bf16"))
    with pytest.raises(LfError, match=r"data\.loader = webdataset there, auto here"):
        resumed(run, JOB.with_("data.loader=auto"))
    monkeypatch.setattr(formats, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    with pytest.raises(LfError, match=other):
        resumed(run, JOB.with_("precision.mode=auto"))


def impostor(code: str) -> Job:
    """A job whose supervisor is a program that says a word in its log and goes on with `code`."""
    run = runs.create(JOB)
    run.set_status("running", "starting")
    with (run.path / "logs" / "supervisor.log").open("wb") as log:
        command = [sys.executable, "-c", f"import signal, sys, time; print('a word', flush=True); {code}"]
        job = Job(run, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log))
    until(lambda: (run.path / "logs" / "supervisor.log").read_text(), job._supervisor)
    return job


def test_a_supervisor_that_could_not_start_says_why(place):
    with pytest.raises(LaunchError, match=r"failed: the supervisor exited with 2: a word\.$"):
        impostor("sys.exit(2)").wait()


def test_a_supervisor_that_does_not_end_its_job_is_ended(place, monkeypatch):
    monkeypatch.setattr(sys.modules["lfhelpers.launch"], "STOP", 0.3)  # the name itself is the verb's
    job = impostor("signal.signal(signal.SIGUSR1, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)")
    until(lambda: "ready" in (job.run.path / "logs" / "supervisor.log").read_text(), job._supervisor)
    job.stop(signal.SIGUSR1)
    assert job.poll() == "stopped"
    assert job.run.status["reason"].startswith("the supervisor was ")
