"""A rank alone in its group counts as one among many does, and its process ends."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.pitfalls import lone


def micro_batches_exchanged(count):
    model = DistributedDataParallel(nn.Linear(4, 2))
    seen = lone.exchanges(model)
    for _ in range(count):
        model(torch.ones(2, 4)).sum().backward()
    return seen, dist.get_world_size()


def wrapped_models_at_the_groups_end():
    """How many there are when the group is about to go: one that outlives it may hang the process."""
    DistributedDataParallel(nn.Linear(4, 2))(torch.ones(2, 4)).sum().backward()
    left, destroy = [], dist.destroy_process_group

    def counting():
        left.append(sum(isinstance(item, DistributedDataParallel) for item in gc.get_objects()))
        dist.destroy_process_group = destroy
        destroy()
    dist.destroy_process_group = counting
    return left


def test_each_backward_of_one_bucket_is_one_exchange():
    assert lone.call(micro_batches_exchanged, 3) == ([0, 0, 0], 1)


def test_the_wrapped_model_is_gone_before_its_group():
    assert lone.call(wrapped_models_at_the_groups_end) == [0]
