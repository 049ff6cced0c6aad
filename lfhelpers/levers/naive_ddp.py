"""Data parallelism by hand, twice, to read: all gradients after backward, and buckets that leave during backward.

`average_after_backward` is all there is to the idea: ranks start alike, each computes gradients of its own samples, the
mean of them is the gradient of all samples. But nothing else runs while it sends, tensor by tensor, and each message
pays the link's latency.

`Buckets` hides it. Backward makes gradients from the last layer to the first, so parameters are packed into buckets in
that order, gradients lie in the buckets (no copies), and a bucket is sent the moment its last gradient is there, while
backward goes on. What DistributedDataParallel has beyond this: it learns the true order of gradients in the first step,
copes with parameters that get none, takes hooks that compress, and does its work in C++.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def start_alike(model: nn.Module) -> None:
    """Give every rank the weights of rank 0."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def average_after_backward(parameters: Iterable[nn.Parameter]) -> int:
    """Average the gradients over all ranks, one message each; returns how many were sent. Call it after backward."""
    sent = 0
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())
            sent += 1
    return sent


class Bucket:
    """One message: the gradients of a few parameters, side by side in one tensor."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = parameters
        self.data = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=first.dtype,
                                device=first.device)
        self.missing = len(parameters)
        self.work: Any = None
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            parameter.grad = self.data[begin:end].view_as(parameter)  # backward adds into the bucket itself
            begin = end

    def count(self) -> bool:
        """One gradient more is there; whether it was the last one."""
        self.missing -= 1
        return self.missing == 0

    def send(self) -> None:
        """Start the all-reduce, and go on without waiting for it."""
        self.data.div_(dist.get_world_size())
        self.work = dist.all_reduce(self.data, async_op=True)

    def wait(self) -> None:
        """Wait until the sum of all ranks is there; ready for the next step."""
        self.work.wait()
        self.work, self.missing = None, len(self.parameters)


class Buckets:
    """The buckets of a model, and the hooks that send them.

    After backward call `wait`. Zero gradients in place: None would take them out of their buckets.
    """

    def __init__(self, model: nn.Module, bucket_mb: float = 25.0) -> None:
        self.sent = 0
        self._exchanging = True
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buckets = [Bucket(group) for group in packed(reversed(trained), bucket_mb)]
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self._next = 0
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._ready)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """For all micro-batches of a step but the last: gradients add up here, and nothing is sent."""
        self._exchanging = False
        try:
            yield
        finally:
            self._exchanging = True

    def wait(self) -> None:
        """Wait for all buckets: afterwards each gradient is the mean over the ranks."""
        for bucket in self.buckets:
            bucket.wait()
        self._next = 0

    def _ready(self, parameter: Tensor) -> None:
        """Autograd has just finished the gradient of this parameter."""
        if not self._exchanging:
            return
        self._bucket_of[parameter].count()  # type: ignore[index]
        # Ranks must send in one order, or they would wait for each other: a bucket that is full early waits its turn.
        while self._next < len(self.buckets) and self.buckets[self._next].missing == 0:
            self.buckets[self._next].send()
            self._next += 1
            self.sent += 1


def packed(parameters: Iterable[nn.Parameter], bucket_mb: float) -> Iterator[list[nn.Parameter]]:
    """Groups in the given order, of one dtype each, closed as soon as they hold `bucket_mb`."""
    open_groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        group = open_groups.setdefault(parameter.dtype, [])
        group.append(parameter)
        if sum(one.numel() * one.element_size() for one in group) >= bucket_mb * 2**20:
            yield open_groups.pop(parameter.dtype)
    yield from open_groups.values()
