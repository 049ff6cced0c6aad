"""A step that was not finite is reproduced from its kept batch alone, and the operator that began it is named."""

import re
import shutil

import pytest
import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.train.replay import First, replay
from tests.train.toy import Toy, ToyModel


class Logs(Toy):
    """Takes the root of a number that is negative in some samples: nan in forward."""

    def loss(self, model, batch, draws):
        loss, weight = super().loss(model, batch, draws)
        return loss + (batch["x"][:, 0] * (batch["ids"] < 8)).sqrt().sum() * model(batch["x"]).sum() * 0, weight


def test_a_bad_step_is_reproduced_with_its_operator(toy_run, command):
    run, summary = toy_run("workload.use=tests.train.test_replay:Logs", "optimizer.max_skips=50", "log.probe=false")
    assert summary["steps"]["skipped"] > 0
    step = run.read("nonfinite-rank-0.json")[0]["step"]
    found = replay(run, step)
    assert found.finding.cause == "loss" and (found.operator, found.backward) == ("aten.sqrt.default", False)
    code, out, _ = command("replay", run.path, "--step", step)
    assert code == 0 and "the first operator is aten.sqrt.default in forward" in out
    with pytest.raises(LfError, match=f"kept no batch of step 99 .*nonfinite-step-{step}-rank-0.pt"):
        replay(run, 99)


def watched(function, *values):
    first, leaves = First(), [torch.tensor(value, requires_grad=True) for value in values]
    with first:
        result = function(*leaves)
        first.backward = True
        result.sum().backward()
    return first.result()


def test_the_operator_is_that_which_makes_a_nan_of_inputs_without_one():
    hidden = torch.tensor([[True, True], [False, True]])
    masked = watched(lambda scores: scores.masked_fill(hidden, -torch.inf).softmax(-1), [[1.0, 2.0], [3.0, 4.0]])
    assert masked == ("aten._softmax.default", False), "not the mask, whose infinities are meant"
    assert watched(lambda x: x.sqrt() * 0, [0.0, 1.0])[1], "a root's slope at 0 is found in backward"
    assert watched(lambda x: x / 0, [1.0]) == ("aten.div.Tensor", False), "without a nan, the infinity"
    assert watched(lambda x: x * 2, [1.0]) == ("", False)


class Edited(Logs):
    """Logs with another model."""

    def model(self):
        return ToyModel(nn.Linear(4, 5), nn.Linear(5, 2))


class Narrower(Logs):
    """Logs with a model for other samples."""

    def model(self):
        return ToyModel(nn.Linear(3, 8), nn.Linear(8, 2))


def test_an_edited_model_and_a_cut_file_are_told_in_one_sentence(toy_run, command):
    run, _ = toy_run("workload.use=tests.train.test_replay:Logs", "optimizer.max_skips=50", "log.probe=false",
                     "checkpoint.every=1", "checkpoint.keep=50")
    step = run.read("nonfinite-rank-0.json")[-1]["step"]

    def edited(name):
        text = (run.path / "recipe.toml").read_text()
        (run.path / "recipe.toml").write_text(re.sub(r"test_replay:\w+", f"test_replay:{name}", text))
    edited("Edited")
    code, out, err = command("replay", run.path, "--step", step)
    assert code == 2 and "Traceback" not in out + err
    assert f"the checkpoint step-{step - 1:08d}" in err and "replay it with the code that the run had" in err
    shutil.rmtree(run.path / "checkpoints")
    edited("Narrower")
    with pytest.raises(LfError, match=f"the kept batch of step {step} no longer passes through the workload"):
        replay(run, step)
    edited("Logs")
    kept = run.path / f"nonfinite-step-{step}-rank-0.pt"
    kept.write_bytes(kept.read_bytes()[:200])
    with pytest.raises(LfError, match=r"the kept batch nonfinite-step-.*\.pt can't be read, it is cut or damaged"):
        replay(run, step)
