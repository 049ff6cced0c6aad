"""Gradients become ready from the last layer to the first, and a replay's buckets tell when."""

import pytest
import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers.overlap import Bucket
from lfhelpers.levers.ready import replayed, watched


def test_the_last_layer_is_ready_first_and_what_gets_no_gradient_is_left_out():
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)), nn.Linear(4, 4).bfloat16())
    found = watched(model, lambda: model[:3](torch.ones(2, 4)).sum().backward(), repeats=2)
    assert [gradient.name for gradient in found] == ["2.weight", "1.weight", "0.weight"]
    assert [(gradient.size, gradient.dtype) for gradient in found] == [(64, "float32")] * 3
    times = [gradient.ready_ms for gradient in found]
    assert 0 < times[0] <= times[1] <= times[2]
    assert not model[0].weight._post_accumulate_grad_hooks, "the hooks are gone"


def test_a_step_without_hooks_can_not_be_watched():
    with pytest.raises(LfError, match="replayed from a CUDA graph runs no hooks"):
        watched(nn.Linear(2, 2), lambda: None)


def test_a_replay_tells_each_bucket_by_the_start_of_its_collective():
    """The first collective sums losses, and belongs to no bucket."""
    buckets = [Bucket((("c", 8, "bfloat16"), ("b", 4, "bfloat16"))), Bucket((("a", 16, "float32"),))]
    found = replayed(buckets, [(1.0, 1.1), (5.0, 6.0), (7.5, 9.0)])
    assert [(each.name, each.size, each.ready_ms, each.dtype) for each in found] == [
        ("c", 8, 5.0, "bfloat16"), ("b", 4, 5.0, "bfloat16"), ("a", 16, 7.5, "float32")]
    assert [bucket.size for bucket in buckets] == [12, 16]
    with pytest.raises(LfError, match="shows 1 collectives for 2 buckets"):
        replayed(buckets, [(1.0, 2.0)])
