"""1-bit Adam: packing, error feedback, and the optimizer that goes with it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lfhelpers.levers.one_bit_adam import BLOCK, OneBit, pack, signed, unpack, unsigned
from lfhelpers.recipe import recipe
from lfhelpers.train.adamw import MasterAdamW
from lfhelpers.train.one_bit import OneBitAdamW
from lfhelpers.train.ranks import alone

GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


@pytest.fixture(scope="module", autouse=True)
def group():
    with alone():
        yield


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_flags_survive_packing_eight_to_a_byte(flags):
    whole = torch.tensor(flags * 8)
    packed = pack(whole)
    assert packed.dtype == torch.uint8 and len(packed) == len(flags)
    assert torch.equal(unpack(packed), whole)


def test_the_first_flag_is_the_lowest_bit():
    assert pack(torch.tensor([True, False, False, False, False, False, False, True])).tolist() == [129]


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_signs_and_what_they_leave_out_make_up_the_whole(seed, share):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3 * BLOCK, generator=generator) * 10 ** torch.randn(3 * BLOCK, generator=generator)
    live = torch.rand(3 * BLOCK, generator=generator) < share
    packed, left = signed(values, live)
    sent = unsigned(packed, live)
    assert torch.equal(sent != 0, live & (packed[1] > 0).repeat_interleave(BLOCK))
    assert ((sent + left - values * live).abs() <= 1e-6 * (sent.abs() + values.abs())).all()
    assert left.square().sum() <= (values * live).square().sum() * (1 + 1e-5), "sending leaves less than not sending"


def test_error_feedback_delivers_everything_in_the_end():
    """A constant that is sent 400 times arrives on the average, though only signs cross."""
    torch.manual_seed(0)
    values, live = torch.randn(2 * BLOCK), torch.ones(2 * BLOCK, dtype=torch.bool)
    exchange = OneBit(1, 0, 2)
    total = sum(exchange.mean(values, live, GOOD) for _ in range(400))
    assert (total / 400 - values).norm() < 0.06 * values.norm()
    without = OneBit(1, 0, 2).mean(values, live, GOOD)
    assert (without - values).norm() > 0.6 * values.norm(), "what signs alone give each time"


def test_a_bad_step_leaves_what_was_left_out_as_it_was():
    values, live = torch.arange(float(BLOCK)), torch.ones(BLOCK, dtype=torch.bool)
    exchange = OneBit(1, 0, 2)
    exchange.mean(values, live, GOOD)
    before = exchange.state_dict()
    exchange.mean(values * float("nan"), live, BAD)
    after = exchange.state_dict()
    assert torch.equal(before["mine"], after["mine"]) and torch.equal(before["ours"], after["ours"])


def pair(warmup, exact=False):
    """(optimizer, its weights, its exchange) on 300 and 5 numbers."""
    fields = recipe("competent").optimizer
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(20, 15)), nn.Parameter(torch.randn(5))]
    exchange = OneBit(1, 0, warmup)
    return MasterAdamW(weights, (), fields) if exact else OneBitAdamW(weights, (), fields, exchange), weights, exchange


def steps(optimizer, weights, gradients, start=0, bad=GOOD):
    for number, gradient in enumerate(gradients, start):
        for weight, value in zip(weights, gradient, strict=True):
            weight.grad = value.clone()
        optimizer.norm()
        optimizer.step(torch.tensor(1.0), bad, torch.tensor(1e-2), torch.tensor(number))


def gradients(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(20, 15, generator=generator), torch.randn(5, generator=generator)) for _ in range(count)]


def test_the_warm_up_is_exact_adamw():
    (ours, mine, _), (theirs, others, _) = pair(10), pair(10, exact=True)
    for optimizer, weights in ((ours, mine), (theirs, others)):
        steps(optimizer, weights, gradients(10))
    assert all(torch.equal(*weights) for weights in zip(mine, others, strict=True))


def test_after_it_the_second_moment_is_frozen_bias_corrected_and_the_update_is_a_sign():
    optimizer, weights, _ = pair(3)
    steps(optimizer, weights, gradients(3))
    second, before = optimizer.moments[1][1].clone(), weights[1].detach().clone()
    steps(optimizer, weights, gradients(1, seed=2), start=3)
    frozen = second / (1 - 0.999**3)
    assert torch.allclose(optimizer.moments[1][1], frozen)
    size = optimizer.moments[1][0].abs()
    assert torch.allclose(size, size[0].expand(5)), "one scale for the block"
    expected = before * (1 - 1e-2 * 1e-5) - 1e-2 * optimizer.moments[1][0] / (1 - 0.9**4) / (frozen.sqrt() + 1e-8)
    assert torch.allclose(weights[1], expected)
    steps(optimizer, weights, gradients(5, seed=3), start=4)
    assert torch.allclose(optimizer.moments[1][1], frozen), "for good"


def test_what_never_had_a_gradient_is_not_moved_by_a_sign():
    optimizer, weights, _ = pair(3)
    quiet = [(large.index_fill(0, torch.arange(4), 0.0), small) for large, small in gradients(8)]
    before = weights[0].detach()[:4].clone()
    steps(optimizer, weights, quiet)
    assert torch.allclose(weights[0][:4], before * (1 - 1e-2 * 1e-5) ** 8)


def test_a_bad_step_changes_nothing():
    optimizer, weights, _ = pair(2)
    steps(optimizer, weights, gradients(4))
    before = [value.clone() for value in (*weights, *optimizer.moments[0], *optimizer.moments[1])]
    bad = [(large * float("nan"), small) for large, small in gradients(1)]
    steps(optimizer, weights, bad, start=4, bad=BAD)
    assert all(torch.equal(*values) for values in
               zip(before, (*weights, *optimizer.moments[0], *optimizer.moments[1]), strict=True))
