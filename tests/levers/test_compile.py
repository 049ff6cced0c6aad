"""Compiled blocks compute what eager blocks do, under the same names, and compile once."""

import pytest
import torch

from lfhelpers.levers import compile as lever
from lfhelpers.recipe import recipe
from tests.train.toy import Toy, batches


def test_compiled_blocks_give_the_eager_loss_and_gradients():
    pair, = batches(1, 8)
    results = []
    for scope in ("none", "blocks"):
        job = recipe("competent", f"compile.scope={scope}")
        torch.manual_seed(0)
        model = Toy(job).model()
        lever.apply(job, [model])
        loss, weight = Toy.loss(None, model, *pair)
        (loss / weight).backward()
        results.append((loss.item(), model[0].weight.grad, list(model.state_dict()), lever.graphs(job)))
    eager, compiled = results
    assert compiled[0] == pytest.approx(eager[0], rel=1e-5)
    assert torch.allclose(compiled[1], eager[1], atol=1e-5)
    assert compiled[2] == eager[2], "checkpoints of compiled models have no _orig_mod. in their keys"
    assert eager[3] == 0 and compiled[3] >= 1
