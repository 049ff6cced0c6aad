"""bf16 weights with fp32 masters: what autocast computes, an update like torch's, and the same after a stop."""

import copy

import pytest
import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from lfhelpers.train.adamw import MasterAdamW, store_in_bf16

FIELDS = recipe("competent", "optimizer.weight_decay=0.1", "optimizer.lr=0.01").optimizer
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU")])]


def network(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(70, 130), nn.LayerNorm(130), nn.Linear(130, 3)).to(device)


def gradients(model, seed):
    """Random gradients that bf16 holds exactly, so that fp32 and bf16 weights can be given the same."""
    draws = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        grad = torch.randn(parameter.shape, generator=draws).bfloat16()
        parameter.grad = grad.to(parameter.device, parameter.dtype)


def scalars(device, factor=0.5, bad=0.0, applied=0):
    return (torch.tensor(factor, device=device), torch.tensor(bad, device=device),
            torch.tensor(1e-2, device=device), torch.tensor(applied, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_ten_updates_are_those_of_torchs_adamw_on_fp32(device):
    plain, low = network(device), network(device)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=FIELDS.betas, eps=FIELDS.eps, weight_decay=0.1)
    ours = MasterAdamW(list(low.parameters()), store_in_bf16(low), FIELDS)
    for step in range(10):
        for model in (plain, low):
            gradients(model, step)
        norm = ours.norm()
        ours.step(*scalars(device, applied=step))
        torch.testing.assert_close(norm, nn.utils.get_total_norm([p.grad for p in plain.parameters()]))
        for parameter in plain.parameters():
            parameter.grad *= 0.5
        reference.step()
    for master, weight, expected in zip(ours.masters, ours.parameters, plain.parameters(), strict=True):
        torch.testing.assert_close(master, expected.data, rtol=1e-5, atol=1e-6)
        assert torch.equal(weight.data, master.to(weight.dtype)), "the model's weight is its master, rounded"


def test_matrices_and_their_biases_become_bf16_and_norms_stay():
    model = network()
    masters = store_in_bf16(model)
    assert [parameter.dtype for parameter in model.parameters()] == [
        torch.bfloat16, torch.bfloat16, torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]
    assert len(masters) == 4 and all(master.dtype == torch.float32 for _, master in masters)


def test_forward_and_gradients_are_what_autocast_computes_from_fp32_weights():
    plain, low = network(), network()
    store_in_bf16(low)
    x = torch.randn(16, 70)
    for model in (plain, low):
        with torch.autocast("cpu", torch.bfloat16):
            (model(x).float() ** 2).sum().backward()
    for one, other in zip(plain.parameters(), low.parameters(), strict=True):
        assert torch.equal(one.grad.to(other.dtype), other.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_a_bad_step_changes_nothing_and_a_missing_gradient_leaves_its_parameter(device):
    model = network(device)
    ours = MasterAdamW(list(model.parameters()), store_in_bf16(model), FIELDS)
    before = copy.deepcopy(ours.state_dict())
    gradients(model, 0)
    ours.norm()
    ours.step(*scalars(device, bad=1.0))
    assert all(torch.equal(one, other) for one, other in zip(before["masters"], ours.masters, strict=True))
    ours.parameters[0].grad = None
    ours.norm()
    ours.step(*scalars(device))
    same = [torch.equal(one, other) for one, other in zip(before["masters"], ours.masters, strict=True)]
    assert same == [True, False, False, False, False, False]


def test_it_goes_on_from_its_state_bit_for_bit():
    whole, part = network(), network()
    ours = [MasterAdamW(list(model.parameters()), store_in_bf16(model), FIELDS) for model in (whole, part)]
    for step in range(4):
        gradients(whole, step)
        ours[0].step(*scalars("cpu", applied=step))
        if step == 1:
            state = copy.deepcopy(ours[0].state_dict())
    ours[1].load_state_dict(state)
    for step in (2, 3):
        gradients(part, step)
        ours[1].step(*scalars("cpu", applied=step))
    for one, other in zip([*whole.parameters(), *ours[0].masters], [*part.parameters(), *ours[1].masters], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("override, said", [
    ("batch.accumulate=2", "would round the sum"), ("precision.mode=fp32", "needs precision.mode='bf16'"),
    ("optimizer.fused=false", "needs optimizer.fused=true"),
])
def test_what_it_cannot_go_with_is_named(override, said):
    with pytest.raises(LfError, match=said):
        recipe("competent", "precision.weights=bf16", override)
