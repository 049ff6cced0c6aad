"""The schedule: warm-up, cosine, constant; its state and AdamW's survive a save."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.recipe import OptimizerFields
from lfhelpers.train.optimizer import learning_rates
from tests.train.toy import batches, trainer


def test_warm_up_then_cosine():
    rates = learning_rates(OptimizerFields(warmup=0.1), peak=1.0, steps=100)
    assert rates[:10].tolist() == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert rates[10] == 1.0
    assert rates[55].item() == pytest.approx(0.5)
    assert rates[100].item() == pytest.approx(0.0, abs=1e-7)


@given(steps=st.integers(1, 500), warmup=st.floats(0, 0.99), schedule=st.sampled_from(["cosine", "constant"]))
def test_rates_stay_within_the_peak_and_rise_through_the_warm_up(steps, warmup, schedule):
    rates = learning_rates(OptimizerFields(warmup=warmup, schedule=schedule), peak=0.3, steps=steps)
    assert len(rates) == steps + 1 and rates.max() <= 0.3 and rates[:-1].min() > 0
    rising = rates[: round(warmup * steps) + 1]
    assert (rising.diff() > 0).all()
    assert schedule == "cosine" or math.isclose(rates[-1].item(), 0.3, rel_tol=1e-6)


@pytest.mark.parametrize("fused", ["true", "false"])
def test_a_loaded_optimizer_goes_on_bit_for_bit(fused):
    pairs = batches(6, 8)
    whole, _, whole_model = trainer(f"optimizer.fused={fused}")
    for index, pair in enumerate(pairs):
        whole(index, iter([pair]), 1)
    first, first_optimizer, first_model = trainer(f"optimizer.fused={fused}")
    for index, pair in enumerate(pairs[:3]):
        first(index, iter([pair]), 1)
    second, second_optimizer, second_model = trainer(f"optimizer.fused={fused}", seed=9)
    second_model.load_state_dict(first_model.state_dict())
    second_optimizer.load_state_dict(first_optimizer.state_dict())
    for index, pair in enumerate(pairs[3:], start=3):
        second(index, iter([pair]), 1)
    assert all(torch.equal(a, b) for a, b in zip(whole_model.parameters(), second_model.parameters(), strict=True))
