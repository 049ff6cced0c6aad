"""What a recipe's step takes, probed in a process of its own: peak bytes, and milliseconds. A crash is a point.

The caller must not have used CUDA (measure.isolated says why), so probe before ranks take their devices. One rank alone
is probed, without DDP: its buckets are as large as the gradients, and come on top unless ddp.bucket_view is on. Bytes
are what torch's allocator hands out at most; on a CPU those that levers.limit counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from lfhelpers.errors import LfError
from lfhelpers.levers.batch import DoesNotFit, Found, search
from lfhelpers.levers.frozen import Pair
from lfhelpers.levers.limit import GIB, Budget, limited
from lfhelpers.measure import hardware, isolated
from lfhelpers.recipe import Recipe
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.ranks import Ranks, identify
from lfhelpers.train.trainer import Trainer

ROOM = 0.97
"""Share of a GPU's memory that a process may hope for; the rest is CUDA's own."""
KILLED = "SIGKILL"
"""How the kernel ends a process that takes more host memory than there is."""
Pairs = Callable[[Recipe, torch.device], Iterator[Pair]]


@dataclass(frozen=True)
class Footprint:
    """Of one micro-batch: the most bytes handed out and held by the allocator, and milliseconds of each timed step."""

    micro: int
    peak: int
    reserved: int
    ms: list[float]


def footprint(job: Recipe, steps: int = 3, pairs: Pairs | None = None, timeout: float = 300.0) -> Footprint:
    """Probe the recipe's step: warm-up, then `steps` timed ones, within job.batch.limit_gib.

    pairs: makes endless device pairs (batch, draws); without it those of the workload `vla`.
    Raises DoesNotFit where there is no room, and LfError for what else goes wrong.
    """
    import torch._dynamo  # noqa: F401  # an optimizer's first step asks for it: seconds, which each child would spend

    try:
        found = isolated.call(_measured, job, steps, pairs, timeout=timeout)
    except LfError as error:
        if KILLED in str(error):
            raise DoesNotFit(f"micro-batch {job.batch.micro}: the host ran out of memory") from error
        raise
    if isinstance(found, str):
        raise DoesNotFit(f"micro-batch {job.batch.micro}: {found}")
    return found


def largest(job: Recipe, most: int = 1024, pairs: Pairs | None = None, small: int = 1, large: int = 2) -> Found:
    """The largest micro-batch of the recipe within `room`, by probes of a few steps each."""
    short = {"batch.accumulate": 1, "log.skip": 0}

    def probe(micro: int) -> float:
        return float(footprint(job.with_(**short, **{"batch.micro": micro}), 1, pairs).peak)
    return search(probe, room(job), most, small, large)


def room(job: Recipe) -> float:
    """Bytes that a rank may take: the recipe's limit, or nearly all of the GPU; on a CPU without a limit no end."""
    if job.batch.limit_gib is not None:
        return job.batch.limit_gib * GIB
    if hardware.device(job.device)[0] == "cpu":
        return float(sys.maxsize)
    return min(gpu["memory_gib"] for gpu in hardware.describe()["hardware"]["gpus"]) * ROOM * GIB


def agreed(ranks: Ranks, micro: int) -> int:
    """The micro-batch that fits on every rank: the smallest of what they found. Every rank must call it."""
    return int(min(ranks.gather(micro)))


def _measured(job: Recipe, steps: int, pairs: Pairs | None) -> Footprint | str:
    """In the child: the footprint, or why there is no room."""
    ranks = identify(job.device).alone()
    ranks.take_device()
    try:
        trainer = Trainer(job, ranks, pairs(job, ranks.device) if pairs else None)
        model = bare(trainer.parts.model)
        if ranks.device.type == "cpu":
            with Budget(model, room(job)) as budget:
                ms = _timed(trainer, steps)
            peak = reserved = budget.standing + budget.peak
        else:
            with limited(job.batch.limit_gib, model, ranks.device):
                ms = _timed(trainer, steps)
            peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return Footprint(job.batch.micro, peak, reserved, ms)
    except torch.OutOfMemoryError as error:
        return str(error).partition("\n")[0]


def _timed(trainer: Trainer, steps: int) -> list[float]:
    """Milliseconds of each step, after warm-up."""
    trainer.warm_up()
    found = []
    for _ in range(steps):
        began = time.perf_counter()
        trainer.run(1).tolist()  # waits for the device
        found.append((time.perf_counter() - began) * 1e3)
    return found
