"""Saved activations counted by hand: each storage once, parameters never, by block and by operator."""

import torch
import torch.nn.functional as F
from torch import nn

from lfhelpers.measure import memory

FLOAT = 4


class Ffn(nn.Module):
    """Two products with a GELU between: backward needs the first's input and both sides of the GELU."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def test_an_ffn_saves_its_input_and_both_sides_of_the_gelu():
    model, x = nn.Sequential(Ffn(), Ffn()), torch.randn(5, 8)
    with memory.counted(model, {"first": model[0], "second": model[1]}) as saved:
        model(x)
    block = 5 * (8 + 32 + 32) * FLOAT
    assert saved.bytes == 2 * block and saved.by_block() == {"first": block, "second": block}
    assert saved.by_operator() == {"linear": 2 * 5 * (8 + 32) * FLOAT, "gelu": 2 * 5 * 32 * FLOAT}


def test_views_of_one_storage_count_once_and_whole_for_who_saved_first():
    x = torch.randn(6, 4, requires_grad=True)
    base = x * 1  # a tensor of its own, of which two views are saved
    model = nn.Identity()
    with memory.counted(model) as saved:
        (base[:2].square().sum() + base[2:].exp().sum())
    assert [(entry.operator, entry.bytes) for entry in saved.entries] == [
        ("square", 24 * FLOAT),  # the whole storage, though two rows are saved
        ("exp", 4 * 4 * FLOAT)]  # exp saves its own result


def test_parameters_and_buffers_are_not_activations():
    model = nn.Linear(8, 8)
    model.register_buffer("scale", torch.ones(8))
    with memory.counted(model) as saved:
        (model(torch.randn(3, 8)) * model.scale).sum()
    assert saved.bytes == 3 * 8 * FLOAT


def test_what_autocast_copies_of_weights_is_told_apart():
    model, x = nn.Linear(8, 16), torch.randn(3, 8, requires_grad=True)  # its gradient needs the weight
    with memory.counted(model) as saved, torch.autocast("cpu", torch.bfloat16):
        model(x)
    assert saved.bytes == 3 * 8 * 2  # the input in bf16
    assert saved.weight_copies == 8 * 16 * 2


def test_compiled_calls_are_attributed_to_their_block_and_left_as_they_were():
    model, x = nn.Sequential(Ffn(), Ffn()), torch.randn(5, 8)
    model[0]._compiled_call_impl = model[0]._call_impl  # as levers.compile sets it, without a compiler
    before = model[0]._compiled_call_impl
    with memory.counted(model, {"first": model[0]}, eager=False) as saved:
        model(x)
    assert list(saved.by_block()) == ["first", memory.OUTSIDE]
    assert set(saved.by_operator()) == {memory.COMPILED}
    assert model[0]._compiled_call_impl is before and model[1]._compiled_call_impl is None


def test_what_stands_between_steps():
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 2, bias=False))
    model[0].requires_grad_(False)
    states = [torch.zeros(4, 2), torch.zeros(4, 2), model[1].weight.data]  # a master that is the parameter itself
    assert memory.standing(model, states) == {
        "trained weights": 8 * FLOAT, "frozen weights": 32 * FLOAT, "buffers": 0, "gradients": 8 * FLOAT,
        "optimizer states": 16 * FLOAT}


def test_tied_weights_and_views_count_once():
    weight = torch.zeros(10, 10)
    assert memory.unique_bytes([weight, weight[0], weight.T]) == 100 * FLOAT
