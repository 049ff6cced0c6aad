"""A rank without peers is started as itself, and how it ends is told all the same. The jobs start together."""

import psutil
import pytest

from lfhelpers.launch import LaunchError, launch, start, torchrun
from lfhelpers.recipe import recipe
from lfhelpers.runs import create
from tests.launch.jobs import belonging, supervisor_of, until, working

JOB = recipe(device="cpu", steps=80, name="alone")
FAILING = ("raises", "exits", "killed", "sentence")


@pytest.fixture(scope="module")
def jobs(place):
    """One that ends well, one that would go on, and four that fail."""
    started = {how: start(JOB, 1, module="ranks.failing", args=[how]) for how in FAILING}
    started |= {name: start(JOB, 1, module="ranks.sleeper", args=["--steps", steps])
                for name, steps in (("done", "3"), ("stopped", "8000"))}
    yield started
    for job in started.values():
        job.stop()


def failure(job):
    with pytest.raises(LaunchError) as caught:
        job.wait()
    return caught.value.report.splitlines(), job.run.status


def test_it_has_no_process_above_it_but_the_supervisor_and_can_meet_itself(jobs):
    run = jobs["stopped"].run
    until(lambda: working(run, 1), run)
    (rank,) = psutil.Process(supervisor_of(run).pid).children()
    assert "lfhelpers.launch.rank" in rank.cmdline() and "torch.distributed.run" not in rank.cmdline()
    assert not list((run.path / "logs").glob("torchrun*.log"))
    jobs["stopped"].stop()
    assert belonging(run) == set() and run.status["state"] == "stopped"
    failure(jobs["raises"])
    assert "met 1" in (jobs["raises"].run.path / "logs" / "rank-0.log").read_text(), "torch.distributed found its place"


def test_a_rank_has_as_many_queues_to_its_gpu_as_there_are_unless_the_caller_says_otherwise(place, monkeypatch):
    """With 8, as CUDA has it, the streams of a decoder wait behind a captured step."""
    assert queues() == "32"
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert queues() == "1"


def queues():
    return torchrun._environment(create(JOB), 1, None, None)["CUDA_DEVICE_MAX_CONNECTIONS"]


def test_one_that_ends_well_is_done(jobs):
    assert jobs["done"].wait().status["state"] == "done"


def test_one_that_fails_says_why(jobs):
    report, status = failure(jobs["raises"])
    assert (report[0], status["reason"]) == ("rank 0 failed:", "rank 0: RuntimeError: the tensor of rank 0 is wrong")
    report, status = failure(jobs["exits"])
    assert report[0] == "rank 0 exited with 137 (as after signal 9), often out of memory. Its last lines:"
    assert (status["rank"], status["exit_code"]) == (0, 137)
    report, status = failure(jobs["killed"])
    assert report[:3] == ["rank 0 was killed (signal 9), often out of memory. Its last lines:", "", "the last words"]
    assert failure(jobs["sentence"])[0] == ["recipe field batch.micro = 512 does not fit; take 256."]


def test_what_torchrun_said_of_an_earlier_start_is_not_its_word(place):
    with pytest.raises(LaunchError, match="rank 1 was killed") as caught:
        launch(JOB, 2, watch=False, module="ranks.failing", args=["killed"])
    run = caught.value.run
    (run.path / "logs" / "torchrun-1.log").write_text("of a second host\n")
    for how, words in (("raises", "rank 0 failed:"), ("killed", r"rank 0 was killed \(signal 9\)")):
        with pytest.raises(LaunchError, match=f"^{words}"):
            launch(run.recipe, 1, resume=run.id, watch=False, module="ranks.failing", args=[how])
