"""Gradients that travel while backward still computes: DDP around the model, with buckets of chosen sizes.

A bucket is sent once all its gradients are there, beside the rest of backward. Small buckets start early and pay the
link's latency often; large ones use its bandwidth and leave more for the end, when nothing is left to hide behind. So
sizes are a list: a small first bucket that starts the exchange early, large ones, and perhaps a small last one. A
tensor is never split, so one that is larger than its bucket decides the plan, and is shown.

A parameter that gets no gradient makes DDP wait for ever. DDP's own remedy walks the graph in every step; a dry run
names such parameters once, so that they can be frozen.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.errors import LfError
from lfhelpers.levers.buckets_sim import DEFAULT, FIRST_MB, MB
from lfhelpers.levers.in_place import InPlace
from lfhelpers.recipe import DdpFields, Recipe

SETTLING = 2
"""Passes of a static graph that must exchange before any may go without: in them DDP learns the graph."""
NEVER = 2**31 - 1
"""DDP times every n-th step with events, which it can't read if they became part of a CUDA graph."""


@dataclass(frozen=True)
class Bucket:
    """A bucket in force: (name, bytes, dtype) of each parameter, in the order in which their gradients are ready."""

    parameters: tuple[tuple[str, int, str], ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(size for _, size, _ in self.parameters)


def limits(fields: DdpFields) -> tuple[float, ...]:
    """The buckets' limits in MiB, in the order of sending; the last one repeats, and () is torch's own 1, 25, 25, ...

    One size for all keeps a small first bucket, which torch alone would make as large as the others.
    """
    if fields.bucket_list_mb:
        return fields.bucket_list_mb
    if fields.bucket_mb is None:
        return ()
    return (FIRST_MB, fields.bucket_mb) if fields.bucket_mb > FIRST_MB else (fields.bucket_mb,)


def wrap(job: Recipe, model: nn.Module, device: torch.device) -> DistributedDataParallel | InPlace:
    """DDP as the recipe says, or gradients in place, as a sharded optimizer has them too.

    Buffers are never broadcast in forward: no workload updates any there. LfError where ranks have built different
    models.
    """
    plan = limits(job.ddp)
    known = inspect.signature(DistributedDataParallel).parameters
    still = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # renamed in torch 2.13
    options: dict[str, Any] = {still: False} | ({"bucket_cap_mb_list": list(plan)} if plan else {})
    check_alike(model)
    if job.ddp.in_place or job.ddp.shard_optimizer:
        return InPlace(model, plan)
    ddp = DistributedDataParallel(
        model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=job.ddp.bucket_view,
        find_unused_parameters=job.ddp.find_unused, static_graph=job.ddp.static_graph, **options)
    if job.graph.scope != "none":
        ddp._set_ddp_runtime_logging_sample_rate(NEVER)
    return ddp


def check_alike(model: nn.Module) -> None:
    """Raise LfError, on every rank, where ranks have built different models; each must call it.

    DDP tells this to some ranks only, by a number, and the others wait for those.
    """
    mine = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in model.named_parameters()
            if parameter.requires_grad]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        apart = next((pair for pair in itertools.zip_longest(everyone[0], theirs) if pair[0] != pair[1]), None)
        if apart is not None:
            here, there = (f"{name} {list(shape)} {dtype}" if name else "no parameter more" for name, shape, dtype in
                           (form or ("", (), "") for form in apart))
            raise LfError(f"ranks train different models: rank 0 has {here} where rank {rank} has {there}; nothing in "
                          "the workload's model() may depend on the rank, so see what it reads.")


def settling(model: nn.Module) -> int:
    """Passes at the start that must exchange gradients even where `no_sync` would be right.

    A static graph whose first pass is under no_sync fails, and one that learns in such passes stops exchanging (pytorch
    issue 187732). Two passes that exchange first make it right, and cost one or two exchanges in a run; what is
    exchanged twice is averaged twice, which changes nothing.
    """
    return SETTLING if isinstance(model, DistributedDataParallel) and model.static_graph else 0


def buckets(ddp: DistributedDataParallel | InPlace) -> list[Bucket]:
    """The buckets in force, in the order of sending; [] until DDP has rebuilt them, in the first three steps."""
    if isinstance(ddp, InPlace):
        return [Bucket(tuple((name, *form(ddp.module.get_parameter(name))) for name in names)) for names in ddp.groups]
    text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    trained = [(name, parameter) for name, parameter in ddp.module.named_parameters() if parameter.requires_grad]
    # its own "rebuilt_bucket_sizes" are 32-bit numbers, which a bucket of 2 GiB overflows
    return [Bucket(tuple((trained[int(index)][0], *form(trained[int(index)][1])) for index in bucket.split()))
            for bucket in str(text).split(",") if bucket.strip()]


def giants(parameters: Iterable[tuple[str, nn.Parameter]], plan: Sequence[float]) -> list[tuple[str, float]]:
    """(name, MiB) of trained tensors above the plan's largest limit, the largest first: DDP can't split them."""
    largest = max(plan or DEFAULT)
    found = [(name, form(parameter)[0] / MB) for name, parameter in parameters if parameter.requires_grad]
    return sorted(((name, size) for name, size in found if size > largest), key=lambda each: -each[1])


def described(model: nn.Module) -> dict[str, Any]:
    """For the summary: MiB of each bucket in force, and the giants; {} for a model without DDP."""
    if isinstance(model, InPlace):
        return {"buckets_mb": [bucket.size / MB for bucket in buckets(model)], "giants": []}
    if not isinstance(model, DistributedDataParallel):
        return {}
    plan = [cap / MB for cap in getattr(model, "bucket_bytes_cap_list", [])] or \
        ([] if model.bucket_bytes_cap_default else [model.bucket_bytes_cap / MB])
    return {"buckets_mb": [bucket.size / MB for bucket in buckets(model)],
            "giants": [{"name": name, "mb": size} for name, size in giants(model.module.named_parameters(), plan)]}


def form(parameter: nn.Parameter) -> tuple[int, str]:
    """Bytes and dtype of a parameter's gradient."""
    return parameter.numel() * parameter.element_size(), str(parameter.dtype).removeprefix("torch.")


def unused(model: nn.Module, loss: Callable[[], Tensor]) -> list[str]:
    """Names of trained parameters that `loss().backward()` leaves without a gradient, in the model's order.

    A dry run: gradients are thrown away and the random generators put back, so that the run begins as it would have.
    Run it before DDP wraps the model. What only some batches use must be in the batch, or it is named too.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    devices = sorted({parameter.device.index for _, parameter in trained if parameter.is_cuda})
    with torch.random.fork_rng(devices=devices):
        loss().backward()
    found = [name for name, parameter in trained if parameter.grad is None]
    for _, parameter in trained:
        parameter.grad = None
    return found


def freeze(model: nn.Module, names: Iterable[str]) -> int:
    """Stop training these parameters; returns how many numbers they hold."""
    chosen = [model.get_parameter(name) for name in names]
    for parameter in chosen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in chosen)
