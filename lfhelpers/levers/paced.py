"""gloo over a link of a declared bandwidth and latency, as a backend of torch.distributed.

gloo moves the data, and whoever waits for it waits until the declared link would have: DDP, its hooks, sharded
optimizers, benchmarks alike. The price is a model: one link a rank, on which transfers follow each other, at the cost
of ring algorithms, so 2 (n - 1) messages and 2 (n - 1) / n of the bytes for an all-reduce among n ranks, half of both
to gather, scatter or exchange (Thakur et al. 2005). A transfer begins when the last rank is there. Broadcasts and
barriers pass unpaced. gloo's own speed is the limit: a wire faster than that is not emulated.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lfhelpers.levers.slow_link import Wire

BACKEND = "paced"


class Paced(dist.ProcessGroup):
    """gloo's process group, whose transfers take as long as those of a `Wire`."""

    def __init__(self, gloo: Any, rank: int, size: int, wire: Wire) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub lacks this form
        self.gloo, self.wire = gloo, wire
        self._ranks = size
        self._free = 0.0  # when the wire is free again
        self._transfers: queue.SimpleQueue[tuple[Any, Any, float, torch.futures.Future[Any], Any] | None] = \
            queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="lfhelpers-wire", daemon=True)
        self._thread.start()

    def getBackendName(self) -> str:
        """For torch; not `gloo`, by which name DDP would look for gloo's own object."""
        return BACKEND

    def shutdown(self) -> None:
        """End the thread and gloo's own; called by destroy_process_group. What is left of gloo aborts at exit."""
        self._transfers.put(None)
        self._thread.join()
        self.gloo = None

    def paced(self, start: Callable[[], Any], size: int, share: float, hops: int, result: Any) -> Any:
        """Start a collective of gloo's; the work that is done when it is and its time on the wire has passed."""
        there = self.gloo.allreduce([torch.zeros(1)])  # done when every rank is here
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._transfers.put((there, start(), self.wire.seconds(size, share, hops), future, result))
        return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]

    def _deliver(self) -> None:
        """Complete transfers one after the other: the thread of the wire."""
        while (transfer := self._transfers.get()) is not None:
            there, work, seconds, future, result = transfer
            try:
                there.wait()
                self._free = max(time.perf_counter(), self._free) + seconds
                work.wait()
                time.sleep(max(0.0, self._free - time.perf_counter()))
                future.set_result(result)
            except Exception as error:  # a lost peer: whoever waits for the transfer gets to know
                future.set_exception(error)


# By the name that torch calls: gloo's own name (torch 2.13 has renamed some), the argument that holds all ranks' parts,
# and how many times (n - 1) messages of an n-th of it each rank sends.
_PACED = {"allreduce": ("allreduce", 0, 2), "allreduce_coalesced": ("allreduce_coalesced", 0, 2),
          "allgather": ("allgather", 0, 1), "allgather_coalesced": ("allgather_coalesced", 0, 1),
          "_allgather_base": ("_allgather_base", 0, 1), "all_gather_single": ("_allgather_base", 0, 1),
          "reduce_scatter": ("reduce_scatter", 1, 1), "_reduce_scatter_base": ("_reduce_scatter_base", 1, 1),
          "reduce_scatter_single": ("_reduce_scatter_base", 1, 1),
          "reduce_scatter_tensor_coalesced": ("_reduce_scatter_base", 1, 1),
          "allgather_into_tensor_coalesced": ("_allgather_base", 0, 1), "alltoall": ("alltoall", 1, 1),
          "alltoall_base": ("alltoall_base", 1, 1), "all_to_all_single": ("alltoall_base", 1, 1)}
_ONE_BY_ONE = {"reduce_scatter_tensor_coalesced", "allgather_into_tensor_coalesced"}
"""Of lists of tensors, as one message; gloo's object takes one tensor at a time."""
_PASSED = ("broadcast", "barrier", "gather", "scatter", "reduce", "send", "recv")


class _Works(list[Any]):
    """Works that are one to whoever waits."""

    def wait(self) -> None:
        for work in self:
            work.wait()


def _collective(name: str, gloo_name: str, payload: int, rounds: int) -> Callable[..., Any]:
    def call(self: Paced, *arguments: Any, **options: Any) -> Any:
        size, hops = _bytes(arguments[payload]), rounds * (self._ranks - 1)
        start = functools.partial(getattr(self.gloo, gloo_name), *arguments, **options)
        if name in _ONE_BY_ONE:
            outputs, inputs, *rest = arguments
            start = functools.partial(_started, getattr(self.gloo, gloo_name), outputs, inputs, rest)
        return self.paced(start, size, hops / self._ranks, hops, arguments[0])
    return call


def _started(collective: Callable[..., Any], outputs: list[Tensor], inputs: list[Tensor], rest: list[Any]) -> _Works:
    return _Works(collective(to, of, *rest) for to, of in zip(outputs, inputs, strict=True))


def _passed(name: str) -> Callable[..., Any]:
    return lambda self, *arguments, **options: getattr(self.gloo, name)(*arguments, **options)


for _name, _entry in _PACED.items():
    setattr(Paced, _name, _collective(_name, *_entry))
for _name in _PASSED:
    setattr(Paced, _name, _passed(_name))

_wire: Wire | None = None  # of the groups that are being made


@contextlib.contextmanager
def laid(wire: Wire) -> Iterator[None]:
    """For the block, groups of the backend BACKEND are made with this wire."""
    global _wire
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _make, devices=["cpu"])
    _wire = wire
    try:
        yield
    finally:
        _wire = None


def _make(store: Any, rank: int, size: int, timeout: Any) -> Paced:
    assert _wire is not None, "made inside `laid` alone"
    return Paced(dist.ProcessGroupGloo(store, rank, size, timeout=timeout), rank, size, _wire)


def _bytes(payload: Any) -> int:
    """Bytes of a tensor or of lists of tensors."""
    return payload.nbytes if isinstance(payload, Tensor) else sum(map(_bytes, payload))
