"""Each kind of mistake in a workload, as one sentence that names it and the remedy; the examples have none."""

import re
import struct
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lfhelpers.recipe import recipe
from lfhelpers.workloads import skeleton
from lfhelpers.workloads.base import find
from lfhelpers.workloads.check import ROWS, check

CPU = torch.device("cpu")


class Right:
    """A workload that keeps to its contract; each test changes one thing."""

    fields = SimpleNamespace(images=("jpg",), size=4, others=("f32",))

    def __init__(self, job):
        self.job = job

    def model(self):
        return nn.Sequential(nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))),
                             nn.Linear(4, 1))

    def sample(self, members):
        return {"x": torch.tensor(struct.unpack("<4f", members["f32"]))}

    def draws(self, samples, generator):
        return {"noise": torch.randn(samples, 4, generator=generator, device=generator.device)}

    def loss(self, model, batch, draws):
        images = batch["images"].float().mean() if batch["images"].is_floating_point() else 0.0
        losses = (model(batch["x"] + draws["noise"])[:, 0] - 1 + 0 * images).square()
        return (losses * batch["valid"]).sum(), batch["valid"].sum()

    def flops_per_sample(self):
        return 100.0

    def default_lr(self):
        return 1e-3


def breaches(kind, members=None):
    made = members or [{"f32": struct.pack("<4f", index, 1, 2, 3), "jpg": b""} for index in range(ROWS)]
    return [(one.kind, one.sentence, one.fatal) for one in check(kind(recipe()), recipe(), made, CPU)]


def changed(**methods):
    return type("Changed", (Right,), methods)


def test_a_workload_that_keeps_to_its_contract_has_no_breach():
    assert breaches(Right) == []


def of_means(self, model, batch, draws):
    total, weight = Right.loss(self, model, batch, draws)
    return total / weight, torch.ones(())


def of_one_tensor(self, model, batch, draws):
    return Right.loss(self, model, batch, draws)[0]


def of_padding(self, model, batch, draws):
    return Right.loss(self, model, batch | {"valid": torch.ones(len(batch["x"]))}, draws)


def with_noise(self, model, batch, draws):
    return Right.loss(self, model, batch | {"x": batch["x"] + torch.rand_like(batch["x"])}, draws)


def without_gradient(self, model, batch, draws):
    with torch.no_grad():
        return Right.loss(self, model, batch, draws)


def of_bytes_alone(self, model, batch, draws):
    assert batch["images"].dtype == torch.uint8, "float images"
    return Right.loss(self, model, batch, draws)


MISTAKES = {
    "mean loss": (changed(loss=of_means), r"loss\(\) returns a sum that doesn't add up: .* as a mean would; return the "
                                          r"sum over samples"),
    "one tensor": (changed(loss=of_one_tensor), r"loss\(\) returns one tensor of shape \[\], not \(sum, weight\);"),
    "padding": (changed(loss=of_padding), r"valid'\] is 0 still adds to what loss\(\) returns; multiply"),
    "noise in the loss": (changed(loss=with_noise), r"draws from torch's own generator; draw in draws\(\)"),
    "noise in draws": (changed(draws=lambda self, samples, generator: {"noise": torch.randn(samples, 4)}),
                       r"another 'noise' from an equal generator; pass generator=generator"),
    "noise in sample": (changed(sample=lambda self, members: {"x": torch.rand(4)}),
                        r"sample\(\) gives another 'x' when it is called again"),
    "varying shapes": (changed(sample=lambda self, members: {"x": torch.zeros(int(members["f32"][3] > 0) + 4)}),
                       r"gives 'x' as \[4\] float32 for sample 0 and \[5\] float32 for sample 1; pad or cut it"),
    "no gradient": (changed(loss=without_gradient), r"a sum without a gradient; leave out detach\(\)"),
    "images in bytes alone": (changed(loss=of_bytes_alone), r"loss\(\) raised AssertionError: float images \(test_"),
    "wrong width": (changed(model=lambda self: nn.Linear(3, 1)), r"loss\(\) raised RuntimeError: .* \(test_check\.py:"),
    "unpicklable": (changed(__init__=lambda self, job: setattr(self, "lock", threading.Lock())),
                    r"self\.lock, a lock, can't be pickled, .*; open it in the method that uses it"),
    "fields": (changed(fields=SimpleNamespace(images=(), size=0, others=("wav",))),
               r"fields names the member 'wav', and a sample has f32, jpg"),
    "rate": (changed(default_lr=lambda self: None), r"default_lr\(\) returns None; return a number above 0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name):
    kind, pattern = MISTAKES[name]
    ((_, sentence, fatal),) = breaches(kind)
    assert fatal and re.search(pattern, sentence), sentence


def test_a_model_without_repeated_blocks_narrows_the_levers_and_is_no_obstacle():
    (found,) = breaches(changed(model=lambda self: nn.Linear(4, 1)))
    assert found[0] == "no blocks" and not found[2]
    assert "put alike blocks into an nn.ModuleList, add blocks(model), or take compile.scope='model'" in found[1]


def test_dropout_layers_may_draw():
    assert breaches(changed(model=lambda self: nn.Sequential(Right.model(self), nn.Dropout(0.5)))) == []


@pytest.mark.parametrize("name", ["image_classifier.py:ImageClassifier", "language_model.py:LanguageModel"])
def test_the_examples_keep_to_their_contract_and_read_as_examples(name):
    file = f"notebooks/workloads/{name.partition(':')[0]}"
    job = recipe("competent", f"workload.use=notebooks/workloads/{name}")
    workload = find(job)
    assert check(workload, job, [workload.generate(index) for index in range(ROWS)], CPU) == []
    text = Path(file).read_text()
    assert len(text.splitlines()) < 60 and "lfhelpers" not in text


def test_the_skeleton_keeps_to_its_contract():
    workload = skeleton.MyWorkload(recipe())
    assert check(workload, recipe(), [workload.generate(index) for index in range(ROWS)], CPU) == []
