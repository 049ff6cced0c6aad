"""A captured step computes what an ordinary one does, to the bit, in both scopes, with the frozen part ahead or not.

On a CPU the recording is played by a stand-in that runs the recorded function on the recorded buffers; the same tests
on a GPU use the real thing.
"""

import pytest
import torch

from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import recipe
from lfhelpers.train.captured import CapturedStep, described
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.step import Step
from tests.levers.test_graphs import replayed
from tests.train.toy import ALONE, Toy, batches


class HalfFrozen(Toy):
    """The toy with its first layer frozen; the loss takes what that layer makes of x in place of x."""

    def model(self):
        model = super().model()
        model[0].requires_grad_(False)
        return model

    def frozen(self, model, batch):
        return {name: value for name, value in batch.items() if name != "x"} | {"hidden": model[0](batch["x"])}

    def loss(self, model, batch, draws):
        hidden = batch["hidden"] if "hidden" in batch else self.frozen(model, batch)["hidden"]
        error = ((model[3](torch.tanh(hidden)) - batch["y"] + 0.1 * draws["noise"]) ** 2).float().sum(1)
        weight = batch["weight"] * batch["valid"]
        return (error * weight).sum(), weight.sum()


def trained(scope, ahead, accumulate, steps=9, ranks=ALONE, record=replayed, *overrides):
    """(values of each step, weights, step) after training; scope None: ordinary steps without anything ahead."""
    job = recipe("competent", "precision.mode=fp32", f"frozen.ahead={str(ahead).lower()}", "batch.micro=4",
                 f"batch.accumulate={accumulate}", f"steps={steps}", f"graph.scope={scope or 'none'}", *overrides)
    with ranks.device:
        torch.manual_seed(0)
        workload = HalfFrozen(job)
        model = workload.model()
    precision = Precision(job.precision, ranks.device)
    optimizer = Optimizer(job, model, 1e-2, precision.scaler, keep_grads=scope == "micro")
    step = Step(workload, model, optimizer, precision, ranks, StepClock(ranks.device), 4 * accumulate,
                frozen_ahead=ahead)
    if scope:
        step = CapturedStep(step, scope, 3, record)
    pairs = iter([tuple({name: value.to(ranks.device) for name, value in part.items()} for part in pair)
                  for pair in batches(steps * accumulate, 4)])
    values = [step(index, pairs, accumulate).tolist() for index in range(steps)]
    assert next(pairs, None) is None, "every pair was used"
    return values, torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu(), step


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("scope", [None, "micro", "step"])
def test_values_and_weights_are_those_of_ordinary_steps(scope, ahead, accumulate):
    values, weights, step = trained(scope, ahead, accumulate)
    expected, expected_weights, _ = trained(None, False, accumulate)
    assert values == expected
    assert torch.equal(weights, expected_weights)
    if scope:
        assert step.graphs.count == (2 if scope == "micro" and accumulate > 1 else 1)


def test_a_recording_that_fails_leaves_an_ordinary_run_and_its_reason():
    def refuses(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    values, weights, step = trained("step", True, 2, record=refuses)
    expected, expected_weights, _ = trained(None, False, 2)
    assert values == expected and torch.equal(weights, expected_weights)
    assert described(recipe("competent", "graph.scope=step"), step) == {
        "scope": "step", "recorded": 0, "seconds": 0,
        "obstacle": "operation not permitted when stream is capturing"}


def test_a_cpu_says_that_it_records_nothing():
    job = recipe("competent", "graph.scope=step")
    _, _, step = trained(None, False, 1)
    assert described(job, step)["obstacle"] == "there is no GPU"
    assert described(recipe("competent"), step) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("scope", ["micro", "step"])
def test_a_real_graph_gives_the_values_of_ordinary_steps(scope, ahead, accumulate):
    gpu = Ranks(0, 1, torch.device("cuda", 0))
    expected, expected_weights, _ = trained(None, False, accumulate, ranks=gpu)
    with torch.cuda.stream(torch.cuda.Stream()):
        values, weights, step = trained(scope, ahead, accumulate, ranks=gpu, record=None)
    assert step.graphs.obstacle is None and step.graphs.count >= 1
    assert values == expected and torch.equal(weights, expected_weights)
