"""Packed vision blocks compute what the plain ones do, follow loaded weights, and leave checkpoints as they were."""

import pytest
import torch

from lfhelpers.recipe import recipe
from lfhelpers.workloads.base import find
from lfhelpers.workloads.vla.packed import ALIGNED
from tests.workloads.vla_batches import batch

DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU")])]


def model(packed, *overrides, device="cpu", seed=0):
    workload = find(recipe("competent", f"frozen.packed={packed}", *overrides))
    torch.manual_seed(seed)
    with torch.device(device):
        return workload, workload.model()


@pytest.mark.parametrize("device", DEVICES)
def test_in_fp32_the_frozen_part_is_the_same_to_rounding(device):
    hidden = []
    for packed in ("false", "true"):
        workload, made = model(packed, "precision.mode=fp32", device=device)
        given = {name: value.to(device) for name, value in batch(workload, 2).items()}
        with torch.no_grad():
            hidden.append(made.frozen(given))
    assert made.vision.blocks[0].packed is not None
    torch.testing.assert_close(hidden[1], hidden[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_in_bf16_it_is_no_further_from_fp64_than_the_plain_part(device):
    _, made = model("true", device=device)
    block, plain = made.vision.blocks[0], model("false", device=device)[1].vision.blocks[0]
    x = torch.randn(4, 16, made.size.vision.width, device=device, dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        results = [block(x).double(), plain(x).double()]
    with torch.no_grad():
        exact = plain.double()(x.double())
    errors = [((result - exact).norm() / exact.norm()).item() for result in results]
    assert errors[0] <= 1.5 * errors[1] and errors[1] > 0


def test_widths_are_padded_and_the_state_dict_is_not():
    _, packed = model("true")
    _, plain = model("false")
    assert packed.vision.blocks[0].packed.up.shape[0] % ALIGNED == 0
    assert packed.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in packed.state_dict().items())


def test_loaded_weights_are_packed_again():
    workload, packed = model("true")
    _, other = model("false", seed=7)
    packed.load_state_dict(other.state_dict())
    given = batch(workload, 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, expected = packed.frozen(given), other.frozen(given)
    assert (got - expected).norm() / expected.norm() < 0.01


def test_a_trained_tower_is_left_as_it_is():
    assert model("true", "workload.tune_vision=true")[1].vision.blocks[0].packed is None
