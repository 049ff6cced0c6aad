"""Two costs that are tried aside from the model: a fused update of its parameters, and the profiler's own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.trainer import Trainer

OBSERVED, CHUNKS = 40, 11
"""Tiny operators of a chunk, and chunks: the median chunk is one that no other process has disturbed."""
SAMPLE = 2**24
"""Parameters on which a fused update is tried; more are reckoned from them."""


def fused_ms(trainer: Trainer, updates: int = 8) -> float | None:
    """What a fused update of as many parameters takes here, in ms; None where the recipe has the best one already.

    Tried on SAMPLE parameters at most, which a larger model's are reckoned from.
    """
    fields, optimizer = trainer.job.optimizer, trainer.parts.optimizer
    if fields.fused or fields.states != "fp32" or trainer.job.precision.weights == "bf16":
        return None
    whole = sum(parameter.numel() for parameter in optimizer.parameters)
    taken: list[nn.Parameter] = []
    for parameter in optimizer.parameters:
        if not taken or sum(one.numel() for one in taken) + parameter.numel() <= SAMPLE:
            taken.append(nn.Parameter(parameter.detach().clone()))
    job = trainer.job.with_(**{"optimizer.fused": True, "graph.scope": "none"})
    tried = Optimizer(job, nn.ParameterList(taken), 1e-4, Precision(job.precision, trainer.ranks.device).scaler)
    gradients = [torch.randn_like(parameter) for parameter in tried.parameters]
    one, spent = torch.ones((), device=trainer.ranks.device), []
    for _ in range(2 + updates):
        for parameter, gradient in zip(tried.parameters, gradients, strict=True):
            parameter.grad = gradient
        wait(trainer.ranks.device)
        began = time.perf_counter()
        tried.update(one)
        wait(trainer.ranks.device)
        spent.append(1e3 * (time.perf_counter() - began))
    return statistics.median(spent[2:]) * whole / sum(one.numel() for one in taken)


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def observer_us(device: torch.device, more: Sequence[ProfilerActivity] = ()) -> float:
    """Microseconds that the profiler costs an event of an operator: tiny ones with it and without.

    more: its activities beside the CPU's; with any, shapes are recorded, as in the traces of ablations.
    """
    one = torch.zeros(1, device=device)
    plain = _chunk_us(one)
    with profile(activities=[ProfilerActivity.CPU, *more], record_shapes=bool(more), acc_events=True) as profiler:
        watched = _chunk_us(one)
    seen = sum(event.name.startswith("aten::") for event in profiler.events() or [])  # an operator shows what it calls
    return max(0.0, watched - plain) * CHUNKS * OBSERVED / max(seen, CHUNKS * OBSERVED)


def _chunk_us(one: torch.Tensor) -> float:
    """Microseconds of an operator in the median chunk."""
    spent = []
    for _ in range(CHUNKS):
        began = time.perf_counter()
        for _ in range(OBSERVED):
            one.add_(1.0)
        spent.append(1e6 * (time.perf_counter() - began) / OBSERVED)
    return statistics.median(spent)
