"""This process among its peers: rank, world size, device, and the process group that torchrun's variables describe."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lfhelpers.levers.slow_link import emulated
from lfhelpers.measure.hardware import device as choose_device


@dataclass(frozen=True)
class Ranks:
    """Who this process is."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def alone(self) -> Ranks:
        """This rank as if it had no peers: what is built for it exchanges nothing."""
        return Ranks(self.rank, 1, self.device)

    def take_device(self) -> None:
        """Make this rank's GPU the current one, so that no thread of it opens a context on another's."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def add(self, values: Tensor) -> Any:
        """Start summing a small tensor over the ranks, in place; `wait` on the handle does not block the host."""
        return dist.all_reduce(values, async_op=True) if self.world > 1 else None

    def gather(self, value: Any) -> list[Any]:
        """One object of each rank, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world > 1:
            dist.barrier()


def identify(choice: str) -> Ranks:
    """Who this process is by torchrun's variables; alone without them. No CUDA context is made yet."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    name, _ = choose_device(choice)
    device = torch.device(name, int(os.environ.get("LOCAL_RANK", 0))) if name == "cuda" else torch.device("cpu")
    return Ranks(rank, world, device)


@contextmanager
def joined(ranks: Ranks, slow_link: str | None = None) -> Iterator[None]:
    """Join the peers for the block: NCCL on GPUs, gloo on CPU, slowed as ddp.slow_link says.

    Afterwards gloo's threads are gone, unless something outside still holds a model that DDP wraps.
    """
    # Its functions take the group that stands when it is first imported for the default of an argument, and DDP imports
    # it. Imported before there is a group it holds none. Else the group outlives its destruction, until the interpreter
    # takes modules apart, and a thread of gloo's that wants the interpreter then aborts the process.
    import torch.distributed.nn.functional  # noqa: F401

    cuda = ranks.device.type == "cuda"
    with emulated(slow_link if ranks.world > 1 else None, ranks.device.type) as backend:
        if ranks.world > 1:
            dist.init_process_group(backend, device_id=ranks.device if cuda else None)
        try:
            yield
        finally:
            gc.collect()  # NCCL waits for ever for a CUDA graph that still holds its collectives
            if dist.is_initialized():
                dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """Join a gloo group of this process alone for the block: DDP counts and sends there as it does among many.

    Let go within the block of what DDP wraps. A wrapped model that is destroyed after its group joins gloo's threads
    while it holds the interpreter, for which one of them may wait: on a busy machine 13 of 500 processes hung for ever.
    """
    import torch.distributed.nn.functional  # noqa: F401  # as in `joined`

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        gc.collect()
        dist.destroy_process_group()
