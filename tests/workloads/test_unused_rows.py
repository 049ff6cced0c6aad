"""Rows of embodiments that the data lacks can be left out of training without changing anything else."""

import torch

from lfhelpers.recipe import recipe
from lfhelpers.workloads.base import find
from lfhelpers.workloads.vla.action import EmbodimentLinear
from tests.workloads.vla_batches import batch


def trained(train_unused, steps=3):
    """(losses, state dict, trained numbers) after a few AdamW steps."""
    workload = find(recipe("competent", "precision.mode=fp32", f"workload.train_unused={train_unused}"))
    torch.manual_seed(0)
    model = workload.model()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0)
    draws = workload.draws(2, torch.Generator().manual_seed(1))
    losses = []
    for _ in range(steps):
        total, weight = workload.loss(model, batch(workload, 2), draws)
        (total / weight).backward()
        adamw.step()
        adamw.zero_grad()
        losses.append(total.item())
    return losses, model.state_dict(), sum(parameter.numel() for parameter in parameters)


def test_losses_and_all_weights_are_the_same_and_fewer_numbers_are_trained():
    (all_losses, whole, count), (some_losses, part, fewer) = trained("true"), trained("false")
    assert some_losses == all_losses
    assert part.keys() == whole.keys()
    assert all(torch.equal(part[name], whole[name]) for name in whole)
    model = find(recipe("competent")).model()
    layers = [module for module in model.modules() if isinstance(module, EmbodimentLinear)]
    assert count - fewer == sum(layer.weight[1:].numel() + layer.bias[1:].numel() for layer in layers) > 0


def test_checkpoints_go_both_ways():
    _, saved, _ = trained("true", 1)
    workload = find(recipe("competent", "workload.train_unused=false"))
    torch.manual_seed(5)
    model = workload.model()
    model.load_state_dict(saved)
    assert all(torch.equal(value, saved[name].to(value.dtype)) for name, value in model.state_dict().items())


def test_autograd_keeps_nothing_of_frozen_parts_even_where_it_is_left_on():
    """Why 'frozen parts without autograd' is no lever here: nothing in them requires a gradient."""
    workload = find(recipe("competent"))
    model = workload.model()
    kept = []
    watch = torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda kept: kept)
    with watch, torch.autocast("cpu", torch.bfloat16):
        image = model.connector(model.vision(batch(workload, 2)["images"]))
    assert kept == [] and not image.requires_grad
