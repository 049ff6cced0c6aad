"""Micro-batches that a lack of memory has made smaller grow again, when steps have had room for a while."""

import pytest
import torch

from lfhelpers.train import replan as replan_module
from lfhelpers.train.cuts import Cuts
from tests.train.replanning import pairs_of
from tests.train.test_replan import planted, weights


def made(count, replan, workload, cuts):
    """Each step's micro-batch size, and the loss."""
    sizes, losses = [], []
    for index in range(count):
        workload.step = index
        losses.append(float(replan(index, cuts, 1)[0]))
        sizes.append(8 // cuts.pieces)
    return sizes, losses


@pytest.mark.parametrize("ahead", ["false", "true"])
def test_head_room_that_has_grown_is_used_again_after_a_while(monkeypatch, ahead):
    """Memory is short in step 2 alone, for more than two rows; two steps later larger pieces are tried, and again."""
    monkeypatch.setattr(replan_module, "WAIT", 2)
    steady, model_of_steady, first = planted("batch.micro=8")
    _, expected = made(8, steady, first, Cuts(pairs_of(8, 8, 8, 0, 1)))
    replan, model, workload = planted("batch.micro=8", f"frozen.ahead={ahead}", at="early", step=1, above=2)
    sizes, losses = made(8, replan, workload, Cuts(pairs_of(8, 8, 8, 0, 1)))
    assert sizes == [8, 2, 2, 4, 4, 8, 8, 8]
    assert [(event["step"], event["ranks"], event["micro"]) for event in replan.events] == [
        (2, [0], 4), (2, [0], 2), (4, [], 4), (6, [], 8)]
    assert replan.events[-1]["done"] == "micro-batches of 8 again" and losses == pytest.approx(expected, rel=1e-6)
    assert [len(set(step)) for step in workload.applied] == [8] * 8, "each sample of each step once"
    assert torch.allclose(weights(model), weights(model_of_steady), rtol=1e-12, atol=1e-12)


def test_a_try_that_still_does_not_fit_is_made_again_and_the_next_waits_twice_as_long(monkeypatch):
    monkeypatch.setattr(replan_module, "WAIT", 1)
    replan, _, workload = planted("batch.micro=8", at="forward", above=4)
    cuts, tries, grow = Cuts(pairs_of(9, 8, 8, 0, 1)), [], replan._grow
    replan._grow = lambda step, batches: grow(step, batches) and not tries.append(step)
    for index in range(9):
        workload.step = workload.fails = index  # from the first step on there is room for four rows
        replan(index, cuts, 1)
    assert tries == [1, 3, 7] and {event["micro"] for event in replan.events} == {4}
    assert [len(set(step)) for step in workload.applied] == [8] * 9
