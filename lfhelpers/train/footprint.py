"""What a trainer's memory goes to: what stands, what forward saves block by block, and what the allocator keeps beside.

Exact bytes, from one more forward than training needs; a block's time comes from forwards as they are.
"""

from __future__ import annotations

import gc
import time
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lfhelpers.measure import allocator, memory
from lfhelpers.recipe import Recipe
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.trainer import Trainer
from lfhelpers.workloads.base import blocks_of

FORWARDS = 5
"""Forwards from which a block's time is taken, the shortest."""


def describe(job: Recipe) -> dict[str, Any]:
    """Where a recipe's memory goes, for a picture; in a process of its own.

    standing {kind: bytes}, blocks and operators {name: bytes saved}, weight_copies and peak in bytes (peak beyond what
    stands), and on a GPU reserve, as allocator.Reserve's fields; else None.
    """
    trainer = Trainer(job)
    trainer.run(2)
    stands = standing(trainer)  # before the peak is measured, since gradients come and go
    peak = allocator.peak(lambda: trainer.run(1), trainer.ranks.device)
    saved = counted_forward(trainer, named_blocks(trainer))
    trainer.warm_up()
    reserve = allocator.reserve(trainer.ranks.device)
    trainer.close()
    return {"standing": stands, "blocks": saved.by_block(), "operators": saved.by_operator(),
            "weight_copies": saved.weight_copies, "peak": peak, "reserve": asdict(reserve) if reserve else None}


def named_blocks(trainer: Trainer) -> dict[str, nn.Module]:
    """The workload's blocks by number and name in the model, in the order of forward."""
    model = trainer.parts.model
    names = {id(module): name for name, module in model.named_modules()}
    return {f"{number} {names[id(block)]}": block
            for number, block in enumerate(blocks_of(trainer.workload, model))}


def saved_by_block(trainer: Trainer) -> dict[str, int]:
    """Bytes of activations that forward saves, for each block, and outside of blocks last."""
    blocks = named_blocks(trainer)
    found = counted_forward(trainer, blocks).by_block()
    return {name: found.get(name, 0) for name in (*blocks, memory.OUTSIDE)}


def counted_forward(trainer: Trainer, blocks: dict[str, nn.Module]) -> memory.Saved:
    """One forward whose saved activations are counted; nothing of it stays.

    On the trainer's own stream: a parameter's node in autograd remembers that of its first use, and a CUDA graph that
    is recorded later can't be, where another stream comes in.
    """
    batch, draws = next(trainer.pairs)
    eager = trainer.job.compile.scope == "none"
    settle()
    with trainer.ordered(), memory.counted(trainer.parts.model, blocks, eager) as saved, \
            trainer.parts.precision.autocast():
        loss, _ = trainer.workload.loss(trainer.parts.model, batch, draws)
    del loss
    settle()
    return saved


def standing(trainer: Trainer) -> dict[str, int]:
    """Bytes that stay between steps of a trainer, by kind; gradients only where they stay."""
    parts = trainer.parts
    found = memory.standing(parts.model, optimizer_states(parts.optimizer))
    kept = any(parameter.grad is not None for parameter in parts.model.parameters())
    return found | {"gradients": found["gradients"] if kept else 0}


def optimizer_states(optimizer: Optimizer) -> list[torch.Tensor]:
    """All tensors that an optimizer keeps beside the parameters: moments, masters, its counters."""
    held: list[Any] = []
    for part in vars(optimizer).values():
        held += [dict(part.state)] if isinstance(part, torch.optim.Optimizer) else []
        held += [getattr(part, name) for name in ("masters", "moments") if hasattr(part, name)]
    return [leaf for leaf in tree_leaves([list(each.values()) if isinstance(each, dict) else each for each in held])
            if isinstance(leaf, torch.Tensor)]


def block_ms(trainer: Trainer, blocks: dict[str, nn.Module]) -> dict[str, float]:
    """Milliseconds of each block's forward, the least disturbed of some."""
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in blocks}
    cuda = trainer.ranks.device.type == "cuda"

    def now() -> Any:
        if not cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    begun: list[Any] = []
    with trainer.ordered(), memory.around(blocks, lambda _: begun.append(now()),
                                          lambda name: marks[name].append((begun.pop(), now()))):
        for _ in range(FORWARDS):
            batch, draws = next(trainer.pairs)
            with trainer.parts.precision.autocast():
                trainer.workload.loss(trainer.parts.model, batch, draws)
    settle()
    spent = {name: [a.elapsed_time(b) if cuda else 1e3 * (b - a) for a, b in pairs] for name, pairs in marks.items()}
    return {name: min(values, default=0.0) for name, values in spent.items()}


def release() -> None:
    """Free what nothing refers to any more, and give the allocator's cache back to the GPU."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def settle() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
