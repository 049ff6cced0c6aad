"""The loop in one process: what a run leaves, and that a resumed run goes on bit for bit."""

import errno
import threading

import pytest
import torch
from safetensors.torch import load_file

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.train import checkpoint
from lfhelpers.train.hooks import Hook
from lfhelpers.train.loop import train
from tests.train.toy import ALONE, Toy


class Stop(Hook):
    """Ends the run by an exception after a step's backward, as a kill would."""

    def __init__(self, step):
        self.at = step

    def gradients_ready(self, step, model):
        if step == self.at:
            raise KeyboardInterrupt


class Diary(Hook):
    def __init__(self):
        self.points = []

    def run_start(self, job, run, model):
        self.points.append("start")

    def gradients_ready(self, step, model):
        assert model[0].weight.grad is not None
        self.points.append(f"gradients {step}")

    def step(self, row):
        self.points.append(f"row {row['step']}")

    def run_end(self, summary):
        summary["from_a_hook"] = 1
        self.points.append("end")

    def close(self):
        self.points.append("closed")


def losses(run):
    return [row["loss"] for row in run.steps()]


def test_a_run_leaves_a_complete_folder(toy_run):
    run, summary = toy_run("evaluate.samples=4", "checkpoint.final=true")
    assert run.summary == summary
    assert summary["steps"] == {"applied": 12, "skipped": 0, "timed": 9}, "less the warm-up's 2 and the profiled one"
    assert sum(summary["report"]["percent"].values()) == pytest.approx(100)
    assert set(summary["quality"]) == {"before", "after"}
    rows = run.steps()
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert all(sum(row["ms"].values()) == pytest.approx(row["step_ms"]) for row in rows)
    assert [row["step"] for row in rows if row["probe"]] == [run.read("probe.json")["step"]] == [12]
    assert run.read("environment.json")["versions"]["torch"] == torch.__version__
    assert summary["loss"] == {"first": rows[0]["loss"], "last": rows[-1]["loss"]}


def test_the_short_last_window_is_applied_with_its_true_weight(toy_run):
    """67 samples, 16 a step: the fifth step of an epoch has 3 samples, one micro-batch of 8 with 5 masked rows."""
    run, _ = toy_run("batch.accumulate=2")
    assert [row["samples"] for row in run.steps()] == [16, 16, 16, 16, 3] * 2 + [16, 16]
    assert [row["epoch"] for row in run.steps()] == [0] * 5 + [1] * 5 + [2] * 2


@pytest.mark.parametrize("at", [4, 7, 9])
def test_a_resumed_run_goes_on_bit_for_bit(toy_run, at):
    settings = ("checkpoint.every=3", "workload.dropout=0.3", "batch.accumulate=2", "precision.mode=bf16")
    whole, _ = toy_run(*settings)
    with pytest.raises(KeyboardInterrupt):
        toy_run(*settings, hooks=[Stop(at)])
    broken = runs.find()[-1]
    assert broken.path != whole.path and len(broken.steps()) == at
    train(broken.recipe, broken, ALONE, resume=True)
    assert losses(broken) == losses(whole)
    assert [row["step"] for row in broken.steps()] == list(range(1, 13))
    ends = [load_file(checkpoint.find(run)[-1] / "model.safetensors") for run in (whole, broken)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_checkpoints_have_bare_keys_and_only_the_last_two_stay(toy_run):
    run, _ = toy_run("checkpoint.every=2", "compile.scope=none")
    assert [path.name for path in checkpoint.find(run)] == ["step-00000010", "step-00000012"]
    keys = load_file(checkpoint.find(run)[-1] / "model.safetensors").keys()
    assert keys == Toy(run.recipe).model().state_dict().keys()


def test_a_full_disk_costs_the_new_checkpoint_and_not_the_old_ones(toy_run, monkeypatch):
    real = checkpoint.save_model

    def full(model, path):
        if "step-00000006" in path:
            real(model, path)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(model, path)
    monkeypatch.setattr(checkpoint, "save_model", full)
    with pytest.raises(LfError, match=r"checkpoint of step 6 can't be written.*No space left"):
        toy_run("checkpoint.every=2")
    folder = runs.find()[-1].path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000004"]


def test_resuming_other_data_or_a_finished_run_is_refused(toy_run):
    run, _ = toy_run("checkpoint.every=4")
    with pytest.raises(LfError, match="no step left"):
        train(run.recipe, run, ALONE, resume=True)
    longer = run.recipe.with_("seed=5", "steps=20")
    with pytest.raises(LfError, match="its seed is 0, this run's is 5"):
        train(longer, run, ALONE, resume=True)
    fresh = runs.create(run.recipe)
    with pytest.raises(LfError, match="no checkpoint to continue from"):
        train(fresh.recipe, fresh, ALONE, resume=True)


def test_hooks_are_called_at_their_points_and_see_every_row(toy_run):
    diary = Diary()
    _, summary = toy_run("steps=3", hooks=[diary])
    assert diary.points[0] == "start" and diary.points[-2:] == ["end", "closed"] and summary["from_a_hook"] == 1
    assert [point for point in diary.points if point.startswith("row")] == ["row 1", "row 2", "row 3"]
    assert [point for point in diary.points if "grad" in point] == ["gradients 0", "gradients 1", "gradients 2"]


def test_a_run_that_fails_closes_its_hooks_and_leaves_no_thread(toy_run):
    diary, before = Diary(), set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        toy_run(hooks=[diary, Stop(4)])
    assert diary.points[-1] == "closed" and "end" not in diary.points
    assert set(threading.enumerate()) == before


def test_two_runs_of_one_recipe_are_equal_and_another_seed_is_not(toy_run):
    first, again, other = (toy_run(f"seed={seed}")[0] for seed in (3, 3, 4))
    assert losses(first) == losses(again) != losses(other)


def test_noise_does_not_depend_on_how_a_step_is_cut(toy_run):
    """16 samples as 16, as 2 x 8 or as 4 x 4: the same samples, the same noise, the same losses."""
    whole, halves, quarters = (toy_run("batch.micro=" + str(micro), f"batch.accumulate={16 // micro}",
                                       "precision.mode=fp32")[0] for micro in (16, 8, 4))
    assert losses(halves) == pytest.approx(losses(whole), rel=1e-5)
    assert losses(quarters) == pytest.approx(losses(whole), rel=1e-5)


def test_tensorboard_files_are_written_on_request(toy_run):
    run, _ = toy_run("log.tensorboard=true", "steps=3")
    assert len(list((run.path / "tensorboard").glob("events.*"))) == 1


def test_a_bad_sample_ends_the_run_or_is_masked_and_listed(toy_run, toy_shards, tmp_path):
    """One flipped bit in one sample of 67: the default names it; `skip` trains on the other 66."""
    import shutil

    from lfhelpers.data import Manifest
    from lfhelpers.data.quarantine import read

    damaged = tmp_path / "damaged"
    shutil.copytree(toy_shards, damaged)
    manifest = Manifest.load(damaged)
    shard = damaged / manifest.shards[int(manifest.rows.shard[5])].name
    data = bytearray(shard.read_bytes())
    data[int(manifest.rows.offset[5, 0])] ^= 1
    shard.write_bytes(data)
    overrides = (f"data.path={damaged}", "steps=9")  # one epoch
    with pytest.raises(LfError, match=manifest.where(5)):
        toy_run(*overrides)
    run, summary = toy_run(*overrides, "data.on_bad=skip")
    assert summary["steps"]["applied"] == 9
    assert [(line["sample"], line["epoch"]) for line in read(run.path / "quarantine")] == [(5, 0)]
