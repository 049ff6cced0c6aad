"""A rank alone in its group, in a process of its own: DDP counts and sends there as it does among many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.measure import isolated
from lfhelpers.train.ranks import alone

T = TypeVar("T")


def call(function: Callable[..., T], *args: Any) -> T:
    """function(*args) there; what it wraps in DDP must be gone when it returns. Raises as isolated.call does."""
    import torch._dynamo  # noqa: F401  # DDP's forward does, for two seconds: here once, and not in each process

    return isolated.call(_alone, function, args)


def exchanges(model: DistributedDataParallel) -> list[int]:
    """A list to which each exchange of the model's gradients adds the index of its bucket; nothing is sent."""
    seen: list[int] = []

    def note(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.index())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
    model.register_comm_hook(None, lambda _, bucket: note(bucket))  # of a function DDP reads the annotations
    return seen


def _alone(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    with alone():
        return function(*args)
