"""Gradients that are averaged where backward leaves them: the overlap of DDP without its buckets.

DDP sends flat buckets, so a gradient that backward has just written is added or copied into its bucket, divided there
and zeroed for the next step: up to six passes over memory that is busy with backward. The flat copy is there to send
many tensors as one message. NCCL groups do that as well (ncclGroupStart, "Group Calls" in its documentation), and it
divides as it sums (ReduceOp.AVG), so here the gradients themselves are handed over, as many at a time as DDP would put
into a bucket, and nothing is left to copy. A sharded optimizer (train.sharded) sends them in a way of its own, by the
other two group calls here.

What DDP has beyond this: it finds unused parameters, learns a static graph, and lets hooks compress a bucket.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions, ReduceScatterOptions
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers.buckets_sim import DEFAULT, MB


class InPlace(nn.Module):
    """A model whose trained gradients are the mean over the ranks when backward has ended; every rank must wrap it."""

    def __init__(self, model: nn.Module, plan: Sequence[float] = ()) -> None:
        """plan: MiB after which a message is sent, in the order of sending; the last one repeats, () is DDP's own."""
        super().__init__()
        self.module = model
        self.groups: list[list[str]] = []
        """Names of the parameters in each message of the last exchange, in the order of sending."""
        self.send: Callable[[Sequence[nn.Parameter]], list[Any]] = _averaged
        """Starts to average the gradients of parameters of one dtype; what it returns is waited for."""
        self._plan = tuple(plan) or DEFAULT
        self._exchanging = True
        self._sending = False
        self._works: list[Any] = []
        self._waiting: dict[torch.dtype, list[nn.Parameter]] = {}
        self._sent: dict[torch.dtype, int] = {}
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._names = {parameter: name for name, parameter in trained}
        ready = functools.partial(_ready, weakref.ref(self))
        handles = [parameter.register_post_accumulate_grad_hook(ready) for _, parameter in trained]
        weakref.finalize(self, _remove, handles)  # the parameters outlive this, and are wrapped anew
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, src=0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's; here, as in DDP, it is decided whether the backward that follows exchanges.

        A backward of the bare model doesn't. What one that failed has left behind would keep the next from its end.
        """
        self._sending = self._exchanging
        self._works.clear()
        self._waiting.clear()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """For all micro-batches of a step but the last: gradients add up here, and nothing is sent."""
        self._exchanging = False
        try:
            yield
        finally:
            self._exchanging = True

    def ready(self, parameter: nn.Parameter) -> None:
        """Autograd has finished the gradient of this parameter."""
        if not self._sending:
            return
        if not self._works and not self._waiting:
            self.groups = []
            self._sent.clear()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        dtype = parameter.dtype
        waiting = self._waiting.setdefault(dtype, [])
        waiting.append(parameter)
        limit = self._plan[min(self._sent.get(dtype, 0), len(self._plan) - 1)]
        if sum(each.nbytes for each in waiting) >= limit * MB:
            self._send(dtype)

    def _send(self, dtype: torch.dtype) -> None:
        """Start to average what waits, beside the rest of backward."""
        parameters = self._waiting.pop(dtype)
        self._sent[dtype] = self._sent.get(dtype, 0) + 1
        self.groups.append([self._names[parameter] for parameter in parameters])
        self._works.extend(self.send(parameters))

    def _finish(self) -> None:
        """At the end of backward: send the rest, and let the stream wait for all of it."""
        for dtype in list(self._waiting):
            self._send(dtype)
        for work in self._works:
            work.wait()
        self._works.clear()
        self._sending = False


WRAPPED = DistributedDataParallel, InPlace
"""What may stand around a model that is trained by several ranks; both have `module` and `no_sync`."""


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def average(tensors: Sequence[Tensor]) -> Any:
    """Start to average tensors of one dtype over the ranks, in place and as one message; wait on what is returned."""
    options = AllreduceCoalescedOptions()
    options.reduceOp = _mean(tensors)
    return _group().allreduce_coalesced(list(tensors), options)


def scatter(tensors: Sequence[Tensor]) -> Any:
    """As `average`, but each rank gets its n-th of each contiguous tensor alone; the rest holds no average then."""
    options = ReduceScatterOptions()
    options.reduceOp = _mean(tensors)
    return _group().reduce_scatter_tensor_coalesced(_parts(tensors), [tensor.view(-1) for tensor in tensors], options)


def gather(tensors: Sequence[Tensor]) -> Any:
    """Start to bring every rank's n-th of each contiguous tensor of one dtype to all; wait on what is returned."""
    return _group().allgather_into_tensor_coalesced([tensor.view(-1) for tensor in tensors], _parts(tensors),
                                                    AllgatherOptions())


def _mean(tensors: Sequence[Tensor]) -> dist.ReduceOp:
    """The operation that averages; gloo has none, so there the tensors are divided first, in place."""
    if tensors[0].is_cuda:
        return dist.ReduceOp(dist.ReduceOp.AVG)
    torch._foreach_div_(list(tensors), dist.get_world_size())
    return dist.ReduceOp(dist.ReduceOp.SUM)


def _parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.view(dist.get_world_size(), -1)[dist.get_rank()] for tensor in tensors]


def _group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "ranks have joined"
    return group


def _averaged(parameters: Sequence[nn.Parameter]) -> list[Any]:
    return [average(gradients(parameters))]


def _ready(wrapped: weakref.ref[InPlace], parameter: nn.Parameter) -> None:
    if (alive := wrapped()) is not None:
        alive.ready(parameter)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
