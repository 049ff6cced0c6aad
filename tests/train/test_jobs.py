"""The main job through the real launcher: two ranks, real JPEG shards, both loaders, stopped and resumed."""

import pytest
import torch

from lfhelpers.diagnose import diagnose
from lfhelpers.errors import LfError
from lfhelpers.launch import LaunchError, launch
from lfhelpers.recipe import recipe
from tests.train.toy import ALONE


@pytest.fixture
def job(tabletop_shards, runs_root):
    def make(name="competent", *overrides):
        return recipe(name, f"data.path={tabletop_shards}", "workload.size=tiny", "batch.micro=4", "log.skip=2",
                      "device=cpu", *overrides)
    return make


def test_two_ranks_train_as_found_and_competent_on_the_same_samples(job):
    runs = {name: launch(job(name, "steps=8", "precision.mode=fp32"), nproc=2, watch=False)
            for name in ("as_found", "competent")}
    for run in runs.values():
        assert run.status["state"] == "done"
        assert (run.path / "logs" / "rank-0.log").exists() and (run.path / "logs" / "rank-1.log").exists()
        assert run.summary["ranks"] == 2 and run.summary["samples_per_s"] > 0
        report = diagnose(run)
        assert sum(report.percent.values()) == pytest.approx(100)
        assert run.read("probe.json")["host_reads"] == (3 if run.recipe.name == "as_found" else 0)
    losses = [[row["loss"] for row in run.steps()] for run in runs.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4), "nothing that competent changes may change what is learnt"


def test_a_job_stopped_by_an_error_is_resumed_bit_for_bit(job, tmp_path):
    whole = launch(job("competent", "steps=9", "checkpoint.every=3"), nproc=2, watch=False)
    breaking = tmp_path / "breaking.py"
    breaking.write_text(BREAKS_ONCE.format(marker=str(tmp_path / "broken")))
    settings = ("steps=9", "checkpoint.every=3", f"workload.use={breaking}:Breaks")
    with pytest.raises(LaunchError, match="the power went at step 7"):
        launch(job("competent", *settings), nproc=2, watch=False)
    broken = newest()
    assert broken.status["state"] == "failed" and len(broken.steps()) < 9
    resumed = launch(broken.recipe, nproc=2, resume=broken, watch=False)
    assert resumed.path == broken.path and resumed.status["state"] == "done"
    assert [row["loss"] for row in resumed.steps()] == [row["loss"] for row in whole.steps()]


def test_the_same_global_batch_on_one_rank_gives_the_same_losses(job):
    """Two ranks x 4, one rank x 8, one rank x 4 x 2: one order of samples and noise."""
    from lfhelpers import runs
    from lfhelpers.launch.prepare import prepare
    from lfhelpers.train.loop import train

    losses = []
    for overrides in (("batch.micro=8",), ("batch.micro=4", "batch.accumulate=2")):
        alone = prepare(job("competent", "steps=4", "precision.mode=fp32", *overrides), nproc=1)
        run = runs.create(alone)
        train(alone, run, ALONE)
        losses.append([row["loss"] for row in run.steps()])
    both = launch(job("competent", "steps=4", "precision.mode=fp32"), nproc=2, watch=False)
    losses.append([row["loss"] for row in both.steps()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


def test_tiny_learns_in_200_steps(tabletop_shards, runs_root):
    """The action loss falls by 40 % and the open-loop error on held-out scenes halves (not that it looks)."""
    from lfhelpers import runs
    from lfhelpers.train.loop import train

    job = recipe("competent", f"data.path={tabletop_shards}", "steps=200", "precision.mode=fp32", "evaluate.samples=64",
                 "device=cpu", "batch.micro=8", "log.probe=false")
    run = runs.create(job)
    summary = train(job, run, ALONE)
    losses = [row["loss"] for row in run.steps()]
    assert sum(losses[-20:]) <= 0.6 * sum(losses[:5]) / 5 * 20
    assert summary["quality"]["after"]["action_mse"] <= 0.5 * summary["quality"]["before"]["action_mse"]


def test_small_trains_for_three_steps_on_a_cpu(tabletop_shards, runs_root):
    from lfhelpers import runs
    from lfhelpers.train.loop import train

    job = recipe("competent", f"data.path={tabletop_shards}", "steps=3", "workload.size=small", "batch.micro=1",
                 "data.workers=0", "device=cpu", "log.probe=false")
    run = runs.create(job)
    summary = train(job, run, ALONE)
    assert summary["steps"]["applied"] == 3
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in run.steps())


def test_a_dataset_that_lacks_a_member_is_one_sentence(job, toy_shards):
    with pytest.raises(LfError, match=r"front\.jpg"):
        launch(job().with_(**{"data.path": str(toy_shards), "steps": 2}), watch=False)


def newest():
    from lfhelpers import runs

    return runs.find()[-1]


BREAKS_ONCE = '''
import os, pathlib
from lfhelpers.workloads.vla.workload import Vla

MARKER = pathlib.Path({marker!r})
STEP = 0


class Breaks(Vla):
    """Rank 1 fails in its seventh step, but only the first time."""

    def loss(self, model, batch, draws):
        global STEP
        STEP += 1
        if STEP == 7 and os.environ["RANK"] == "1" and not MARKER.exists():
            MARKER.touch()
            raise RuntimeError("the power went at step 7")
        return super().loss(model, batch, draws)
'''
