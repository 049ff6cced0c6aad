"""From a recipe to the parts that train: model, optimizer, precision, and DDP around them, in the one right order.

Weights are drawn, then made bf16 where the recipe says so, then blocks are made to recompute, then compiled, then DDP
wraps: each of these looks at what the one before it left. Benchmarks and the training loop build here alike, so they
time the same thing.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import nn

from lfhelpers.levers import activations, overlap
from lfhelpers.levers.comm_hooks import Exchange
from lfhelpers.levers.compile import Compilation
from lfhelpers.recipe import Recipe
from lfhelpers.train import agreement
from lfhelpers.train.adamw import store_in_bf16
from lfhelpers.train.exchange import choose
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch, Workload, blocks_of


class Parts(NamedTuple):
    """What a step needs. `model` is wrapped by DDP where there is more than one rank."""

    model: nn.Module
    optimizer: Optimizer
    precision: Precision
    exchange: Exchange | None
    """How gradients cross between ranks; None for a rank alone."""


def assemble(job: Recipe, ranks: Ranks, workload: Workload, compilation: Compilation,
             first: Batch | None = None) -> Parts:
    """Build the parts on the rank's device; the process group must stand where there is more than one rank.

    first: a host batch, which ddp.freeze_unused needs.
    """
    torch.manual_seed(job.seed)
    with ranks.device:
        model = workload.model()
    if job.compile.ffn != "off":
        from lfhelpers.levers import gated_ffn  # defining its operators takes a second

        gated_ffn.fuse(model, job.compile.ffn)
    precision = Precision(job.precision, ranks.device, cache=job.activations.plan != "ops")
    if first is not None:
        agreement.freeze_unused(model, agreement.dry_run(workload, precision, first, job.batch.micro, ranks.device),
                                ranks)
    masters = store_in_bf16(model) if job.precision.weights == "bf16" else None
    blocks = blocks_of(workload, model)
    activations.apply(job, blocks, ranks.device, ranks.world)
    compilation.apply(model, blocks)
    torch.manual_seed(job.seed + ranks.rank)  # weights are alike on all ranks, dropout must not be
    peak = job.optimizer.lr or workload.default_lr()
    keep = job.graph.scope == "micro"  # kept for DDP's buckets, a gradient would be zeroed and added, not just copied
    exchange = choose(job, [parameter for parameter in model.parameters() if parameter.requires_grad], ranks)
    optimizer = Optimizer(job, model, peak, precision.scaler, keep, masters, exchange)
    wrapped = _wrap(job, model, ranks)
    if exchange is not None:
        exchange.attach(wrapped)
    return Parts(wrapped, optimizer, precision, exchange)


def stream(job: Recipe, ranks: Ranks) -> AbstractContextManager[Any]:
    """A stream of its own for all that is built and run, where CUDA graphs are to be recorded from it."""
    graphs = job.graph.scope != "none" and ranks.device.type == "cuda"
    return torch.cuda.stream(torch.cuda.Stream(ranks.device)) if graphs else contextlib.nullcontext()


def _wrap(job: Recipe, model: nn.Module, ranks: Ranks) -> nn.Module:
    """DDP where there is more than one rank."""
    return model if ranks.world == 1 else overlap.wrap(job, model, ranks.device)
