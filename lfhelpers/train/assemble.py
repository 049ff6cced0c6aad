"""From a recipe to the parts that train: model, optimizer, precision, and DDP around them, in the one right order.

Weights are drawn, then made bf16 where the recipe says so, then blocks are compiled, then DDP wraps: each of these
looks at what the one before it left. Benchmarks and the training loop build here alike, so they time the same thing.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers.compile import Compilation
from lfhelpers.recipe import Recipe
from lfhelpers.train.adamw import store_in_bf16
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Workload, blocks_of


class Parts(NamedTuple):
    """What a step needs. `model` is wrapped by DDP where there is more than one rank."""

    model: nn.Module
    optimizer: Optimizer
    precision: Precision


def assemble(job: Recipe, ranks: Ranks, workload: Workload, compilation: Compilation) -> Parts:
    """Build the parts on the rank's device; the process group must stand where there is more than one rank."""
    torch.manual_seed(job.seed)
    with ranks.device:
        model = workload.model()
    masters = store_in_bf16(model) if job.precision.weights == "bf16" else None
    compilation.apply(model, blocks_of(workload, model))
    torch.manual_seed(job.seed + ranks.rank)  # weights are alike on all ranks, dropout must not be
    precision = Precision(job.precision, ranks.device)
    peak = job.optimizer.lr or workload.default_lr()
    keep = job.graph.scope == "micro" or (ranks.world > 1 and job.ddp.bucket_view)
    optimizer = Optimizer(job, model, peak, precision.scaler, keep, masters)
    return Parts(_wrap(job, model, ranks), optimizer, precision)


def stream(job: Recipe, ranks: Ranks) -> AbstractContextManager[Any]:
    """A stream of its own for all that is built and run, where CUDA graphs are to be recorded from it."""
    graphs = job.graph.scope != "none" and ranks.device.type == "cuda"
    return torch.cuda.stream(torch.cuda.Stream(ranks.device)) if graphs else contextlib.nullcontext()


def _wrap(job: Recipe, model: nn.Module, ranks: Ranks) -> nn.Module:
    """DDP as the recipe says; buffers are never broadcast, since no workload here updates any in forward."""
    if ranks.world == 1:
        return model
    return DistributedDataParallel(
        model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None, bucket_cap_mb=job.ddp.bucket_mb,
        gradient_as_bucket_view=job.ddp.bucket_view, find_unused_parameters=job.ddp.find_unused,
        static_graph=job.ddp.static_graph, broadcast_buffers=False)
