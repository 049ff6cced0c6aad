"""Faults of two ranks, from the job that is started to the score that is kept; and what stays when one is gone.

Steps sleep far longer than they compute, so a neighbour of a small machine can't decide.
"""

import functools
import os
import time

import pytest

from lfhelpers.bench import diagnosis
from lfhelpers.bench.diagnosis import Fault
from lfhelpers.bench.diagnosis_ranks import left_ms
from lfhelpers.diagnose import predictions
from lfhelpers.diagnose.ablation import CACHED, FULL, NO_EXCHANGE, Ablation
from lfhelpers.recipe import recipe
from tests.train.conftest import toy_shards  # noqa: F401  # the fixture
from tests.train.toy import Toy

COMPUTE, LATE = 0.04, 0.08


class Steady(Toy):
    """40 ms of computation that no neighbour disturbs."""

    def loss(self, model, batch, draws):
        time.sleep(COMPUTE)
        return super().loss(model, batch, draws)


class Late(Steady):
    """The last rank takes 80 ms more."""

    def loss(self, model, batch, draws):
        time.sleep(LATE * int(os.environ["RANK"]))
        return super().loss(model, batch, draws)


@pytest.fixture
def job(toy_shards, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    return functools.partial(recipe, "competent", f"data.path={toy_shards}", "batch.micro=2", "log.skip=2",
                             "device=cpu", "data.loader=synthetic", "data.augment=false", "precision.mode=fp32",
                             "workload.use=tests.bench.test_diagnosis_ranks:Steady")


def examined(fault):
    """The only fault's findings, once it was planted, predicted and removed in a job of two ranks."""
    record = diagnosis.run([fault], blocks=4, steps=3)
    assert not record.settings["failed"], record.settings["failed"]
    found = record.settings["faults"][fault.name]
    assert record.checks["faults_ranked_first"] == 1, found["table"]
    [score] = predictions.scores()
    assert score.measured == pytest.approx(found["effect"]["ratio"]), "the calibration knows of it"
    return found


@pytest.mark.alone
def test_a_late_rank_is_ranked_first_and_its_worth_is_told(job):
    found = examined(Fault("late rank", job("workload.use=tests.bench.test_diagnosis_ranks:Late"), job(), "late rank",
                           "ideal", 2))
    assert 2 < found["effect"]["ratio"] <= 3.2 and abs(found["error"]) < 0.25, found["line"]


@pytest.mark.alone
def test_a_paced_exchange_is_ranked_first_and_its_worth_is_told(job):
    """40 ms a hop, of which an all-reduce among two ranks has two."""
    slow = job("ddp.slow_link=gloo:1GB/s,40000us")
    found = examined(Fault("paced exchange", slow, slow.with_(), "communication", "ideal", 2))
    assert found["effect"]["ratio"] > 2 and abs(found["error"]) < 0.25, found["line"]


def ablated(full, own):
    """An ablation of two ranks with a step of `full` ms that take `own` ms each without the exchange."""
    def times(*ms):
        return tuple((one,) * 4 for one in ms)

    return Ablation("j", "cpu", "a CPU", 8, 1, 16, {FULL: times(full, full), CACHED: times(full, full),
                                                    NO_EXCHANGE: times(*own)}, 0, 0, 0, None, 0, 2, {})


@pytest.mark.parametrize(("cause", "full", "own", "ideal_ms", "left"), [
    ("communication", 140, (24, 24), 24, 34),  # a step without exchange knows nothing of DDP's own work, here 10 ms
    ("late rank", 84, (24, 84), 24, 34),  # all of it hides behind the waiting: it comes to light when nobody waits
    ("late rank", 88, (24, 84), 28, 34),  # 4 ms show already
    ("late rank", 99, (24, 84), 39, 39)])
def test_what_stays_of_a_step_is_its_own_work_and_the_exchange(cause, full, own, ideal_ms, left):
    assert left_ms(ablated(full, own), cause, ideal_ms, exchange_ms=10) == pytest.approx(left)
