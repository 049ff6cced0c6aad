"""Reported failures of jobs with several ranks (cases 35 and 37): two real jobs at once, of which one is struck.

Shapes that depend on the rank, and other faults of models, are told apart in tests/levers/test_overlap.py.
"""

import os
import re
import signal

import pytest
import torch

from lfhelpers.launch import LaunchError, start
from lfhelpers.train import checkpoint
from tests.launch.jobs import belonging, until

WORKLOADS = '''
import os, time
import torch
from torch import nn
from lfhelpers.train import checkpoint
from tests.train.toy import Toy

RANK = int(os.environ["RANK"])
whole = checkpoint.save_model


class Struck(Toy):
    """Writes one checkpoint, and never gets beyond the half of the next."""

    def __init__(self, job):
        super().__init__(job)
        checkpoint.save_model = self.save

    def save(self, model, file):
        whole(model, file)
        if "step-00000006" in file:
            print("half a checkpoint by", os.getpid(), flush=True)
            time.sleep(600)


class Seeds(Toy):
    """Other first weights on each rank; in the first step each notes its weights and one dropout mask."""

    seen = False

    def model(self):
        torch.manual_seed(RANK)
        return super().model()

    def loss(self, model, batch, draws):
        if not Seeds.seen:
            Seeds.seen = True
            weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            torch.save({"weights": weights, "mask": nn.functional.dropout(torch.ones(1000), 0.5)},
                       os.environ["LFHELPERS_RUN"] + f"/seen-{RANK}.pt")
        return super().loss(model, batch, draws)
'''


@pytest.fixture(scope="module")
def jobs(place, toy, tmp_path_factory):
    """Two jobs of two ranks at once; they meet at ports that were free."""
    file = tmp_path_factory.mktemp("cases") / "cases.py"
    file.write_text(WORKLOADS)
    struck = {"workload.use": f"{file}:Struck", "steps": 5000, "checkpoint.every": 3}
    started = {"struck": start(toy.with_(**struck), 2), "seeds": start(toy.with_(f"workload.use={file}:Seeds"), 2)}
    yield started
    for job in started.values():
        job.stop()


@pytest.fixture(scope="module")
def killed(jobs):
    """(the job whose rank 0 was killed while it wrote a checkpoint, what is said of it)."""
    job = jobs["struck"]
    log = job.run.path / "logs" / "rank-0.log"
    pid = until(lambda: log.exists() and re.search(r"half a checkpoint by (\d+)", log.read_text()), job.run)[1]
    os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(LaunchError) as caught:
        job.wait()
    return job, caught.value


def test_case_35_a_killed_rank_is_shown_first_with_its_signal_and_its_own_last_words(killed):
    job, error = killed
    status = job.run.status
    assert (status["state"], status["rank"], status["exit_code"]) == ("failed", 0, -signal.SIGKILL)
    head, _, *words = error.report.splitlines()
    assert head == "rank 0 was killed (signal 9), often out of memory. Its last lines:"
    assert any(line.startswith("half a checkpoint by") for line in words[:12])
    assert "onnection closed" not in error.report, "what the rank that waited for it said is a symptom"
    assert "forcefully" not in (job.run.path / "logs" / "torchrun.log").read_text(), "nobody waited for a time limit"


def test_case_35_no_process_of_it_lives_on(killed):
    assert belonging(killed[0].run) == set()


def test_case_35_half_a_checkpoint_is_never_taken_for_one(killed):
    run = killed[0].run
    assert checkpoint.steps_done(run) == 3
    assert [path.name for path in checkpoint.find(run)] == ["step-00000003"]
    assert len(list((run.path / "checkpoints").iterdir())) == 2, "the half one is there, under another name"


def test_two_jobs_at_once_do_not_meet_each_others_ranks(jobs, killed):
    run = jobs["seeds"].wait()
    assert run.status["state"] == "done" and run.summary["ranks"] == 2
    assert [row["step"] for row in run.steps()] == list(range(1, 13))


def test_case_37_ranks_that_drew_other_weights_start_alike_and_drop_otherwise(jobs):
    one, two = (torch.load(jobs["seeds"].wait().path / f"seen-{rank}.pt") for rank in (0, 1))
    assert torch.equal(one["weights"], two["weights"])
    assert 0.3 < float((one["mask"] != two["mask"]).float().mean()) < 0.7
