"""A step that isn't finite: what is named, when the run ends, and that good steps cost and change nothing."""

import json

import pytest
import torch
from torch import nn

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.recipe import PrecisionFields, recipe
from lfhelpers.train.guard import Guard
from lfhelpers.train.hooks import Hook
from lfhelpers.train.nonfinite import examine, in_gradients
from lfhelpers.train.precision import Precision
from tests.train.toy import ALONE, Toy, ToyModel, batches

FP32 = Precision(PrecisionFields(mode="fp32"), torch.device("cpu"))


class Log(nn.Module):
    def forward(self, x):
        return x.log()


class Steep(torch.autograd.Function):
    """The identity, whose backward overflows."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.inf


class Steepens(nn.Module):
    def forward(self, x):
        return Steep.apply(x)


def examined(*layers, batch=None, precision=FP32):
    (clean, draws), = batches(1, 8)
    clean["ids"] = torch.arange(100, 108)
    model = ToyModel(*layers)
    toy = Toy(recipe("competent"))
    found = examine(toy, model, precision, clean | (batch or {}), draws, 8)
    assert all(parameter.grad is None for parameter in model.parameters()), "the run's own gradients are not touched"
    return found


def layers():
    torch.manual_seed(0)
    return nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)


def test_nothing_is_found_where_all_is_finite():
    assert examined(*layers()) is None


def test_a_batch_is_named_by_its_tensor_and_its_samples():
    batch = batches(1, 8)[0][0]
    batch["x"][2, 1], batch["x"][5, 3] = torch.nan, torch.inf
    found = examined(*layers(), batch={"x": batch["x"]})
    assert (found.cause, found.text) == ("batch", "batch['x'] of samples 102, 105 is not finite")
    batch["weight"][:] = torch.nan
    found = examined(*layers(), batch={"weight": batch["weight"]})
    assert found.text == "batch['weight'] of samples 100, 101, 102, 103, 104, 105, 106, 107 is not finite"


def test_weights_that_are_not_finite_already_are_named():
    first, middle, last = layers()
    last.weight.data[0, 0] = torch.nan
    last.bias.data[0] = torch.inf
    found = examined(first, middle, last)
    assert (found.cause, found.text) == ("weights", "the weights 2.weight and 1 more were not finite before the step")


def test_the_module_whose_forward_makes_it_is_named_and_not_those_after_it():
    first, _, last = layers()
    found = examined(first, Log(), last, nn.Tanh())
    assert (found.cause, found.text) == ("forward", "the forward of 1 (Log) makes it of finite inputs")


def test_a_parent_that_makes_it_between_its_modules_is_named():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.first(x).log())

    found = examined(Between())
    assert found.text == "0 makes it before it calls 0.last (Linear)"


def test_a_gradient_is_named_where_backward_met_it_first():
    first, middle, last = layers()
    found = examined(first, Steepens(), middle, last)
    assert (found.cause, found.text) == ("gradient", "the gradient of 0.bias is not finite (2 of 4 are not; backward "
                                                     "came to this one first)")


def test_an_overflow_of_scaled_gradients_is_told_from_a_mistake():
    """fp16 on a CPU stands for the GPU's: a scale of 1e9 lifts gradients over 65504."""
    scaled = Precision(PrecisionFields(mode="fp16", init_scale=1e9), torch.device("cpu"))
    found = examined(*layers(), precision=scaled)
    assert (found.cause, found.text) == (
        "scale", "gradients overflow fp16 at the loss scale 1e+09, which the scaler then halves")
    assert scaled.scaler.get_scale() == 1e9


def test_examining_leaves_the_generators_as_they_were():
    first, _, last = layers()
    state = torch.get_rng_state()
    examined(first, nn.Dropout(0.5), last)
    assert torch.equal(torch.get_rng_state(), state)


def test_all_gradients_may_be_missing():
    assert in_gradients([("a", None), ("b", torch.ones(2))]) is None


@pytest.fixture
def spoilt(tmp_path):
    """The toy with a method changed: `spoilt("def model(self): ...")` is a workload.use override."""
    def write(body):
        path = tmp_path / "spoilt.py"
        path.write_text(f"import torch\nfrom torch import nn\nfrom tests.train.toy import Toy, ToyModel\n"
                        f"from tests.train.test_guard import Log, Steepens\n\nclass Spoilt(Toy):\n{body}\n")
        return f"workload.use={path}:Spoilt"
    return write


NAN_IN_SAMPLE_5 = """
    def sample(self, members):
        tensors = super().sample(members)
        return tensors | ({"x": tensors["x"] * torch.nan} if tensors["weight"] > 2 else {})
"""


def test_one_bad_sample_costs_its_steps_and_is_named(toy_run, spoilt, capsys):
    run, summary = toy_run(spoilt(NAN_IN_SAMPLE_5), "steps=18", "log.skip=0", "log.probe=false")
    rows = run.steps()
    skipped = [row["step"] for row in rows if row["skipped"]]
    assert 0 < len(skipped) < 12, "some batches hold such a sample, others don't"
    said = json.loads((run.path / "nonfinite-rank-0.json").read_text())
    assert {item["step"] for item in said} <= set(skipped)
    assert all(item["cause"] == "batch" and item["text"].startswith("batch['x'] of sample") for item in said)
    assert f"step {skipped[0]} is not finite and was skipped, because batch['x'] of sample" in capsys.readouterr().out
    applied = sum(row["samples"] for row in rows if not row["skipped"])
    assert summary["steps"]["skipped"] == len(skipped)
    assert summary["samples_per_s"] == pytest.approx(applied / sum(row["step_ms"] for row in rows) * 1e3)


def test_a_run_that_only_skips_is_ended_with_one_sentence(toy_run, spoilt):
    workload = spoilt("""
    def model(self):
        return ToyModel(nn.Linear(4, 8), Log(), nn.Linear(8, 2))
""")
    with pytest.raises(LfError) as raised:
        toy_run(workload, "optimizer.max_skips=5", "steps=40")
    assert str(raised.value) == (
        "steps 1 to 5 had no finite loss and gradients (loss nan) and were skipped, because the forward of 1 (Log) "
        "makes it of finite inputs; see whether precision.mode='fp32' is free of it, which tells range from a mistake. "
        "The batch holds ids, images, valid, weight, x, y; optimizer.max_skips=5 in a row end a run.")
    assert [row["step"] for row in runs.find()[-1].steps()] == [1, 2, 3, 4, 5]


def test_a_good_step_in_between_starts_the_count_again(toy_run):
    class Spoils(Hook):
        def gradients_ready(self, step, model):
            if step % 3 < 2:
                model[3].bias.grad[0] = torch.inf

    _, summary = toy_run("optimizer.max_skips=3", "steps=12", hooks=[Spoils()])
    assert (summary["steps"]["applied"], summary["steps"]["skipped"]) == (4, 8)


def test_an_infinite_gradient_of_a_finite_loss_is_named(toy_run, spoilt):
    workload = spoilt("""
    def model(self):
        return ToyModel(nn.Linear(4, 8), Steepens(), nn.Linear(8, 2))
""")
    with pytest.raises(LfError, match=r"steps 1 to 4 .*\(loss [0-9.]+\).*the gradient of 0.bias is not finite"):
        toy_run(workload, "optimizer.max_skips=4")


def test_what_the_passes_dont_show_is_sought_in_the_gradients_as_they_come(toy_run):
    """A fault outside the model, as in a compiled kernel or another rank."""
    class Spoils(Hook):
        def gradients_ready(self, step, model):
            model[3].bias.grad[0] = torch.inf

    with pytest.raises(LfError, match=r"steps 1 to 3 .*show no cause; try compile.scope='none'"):
        toy_run("optimizer.max_skips=3", hooks=[Spoils()])

    class SpoilsFirst(Guard):
        def gradients_ready(self, step, model):
            model[3].bias.grad[0] = torch.inf
            super().gradients_ready(step, model)

    run = runs.create(recipe("competent", "optimizer.max_skips=3"))
    guard = SpoilsFirst(run.recipe, run, Toy(run.recipe), FP32, ALONE)
    model = Toy(run.recipe).model()
    model(torch.randn(2, 4)).sum().backward()
    guard.run_start(run.recipe, run, model)
    for step in range(2):
        guard.gradients_ready(step, model)
        guard.step({"step": step + 1, "skipped": True, "loss": 1.0})
    with pytest.raises(LfError, match=r"because the gradient of 3.bias is not finite \(1 of 4 are not"):
        guard.step({"step": 3, "skipped": True, "loss": 1.0})


def test_a_loss_that_no_parameter_feels_is_refused_in_the_first_step(toy_run, spoilt):
    workload = spoilt("""
    def loss(self, model, batch, draws):
        with torch.no_grad():
            total, weight = super().loss(model, batch, draws)
        return total + 0 * torch.zeros((), requires_grad=True), weight
""")
    with pytest.raises(LfError, match="no trained parameter got a gradient in the first step"):
        toy_run(workload)


def test_a_watched_run_is_equal_to_the_bit(toy_run, monkeypatch):
    watched, _ = toy_run("workload.dropout=0.2")
    monkeypatch.setattr("lfhelpers.train.loop.Guard", lambda *_: Hook())
    alone, _ = toy_run("workload.dropout=0.2")
    assert [row["loss"] for row in watched.steps()] == [row["loss"] for row in alone.steps()]


def test_batches_are_kept_within_a_limit(toy_job, monkeypatch):
    run = runs.create(toy_job())
    guard = Guard(run.recipe, run, Toy(run.recipe), FP32, ALONE)
    for step in range(100):
        guard.batch_ready(step, {"x": torch.zeros(10)}, {})
    assert [step for step, *_ in guard._kept] == list(range(84, 100))
    monkeypatch.setattr("lfhelpers.train.guard.KEPT_BYTES", 100)
    for step in range(100, 110):
        guard.batch_ready(step, {"x": torch.zeros(10)}, {})
    assert [step for step, *_ in guard._kept] == [108, 109]
