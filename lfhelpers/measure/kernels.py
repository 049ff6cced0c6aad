"""Which kinds of kernels a step's GPU time goes to: a table by group, from one profiled step.

Groups are told by the kernels' names, which libraries choose: what no rule knows is counted as `other`, and said.
Kernels that run beside each other count in full, so the groups may sum to more than the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

COMMUNICATION = r"nccl|rccl|symm_mem|nvshmem|oneccl|multimem_|(one|two)_shot_all_?reduce|cross_?device_?reduce"
"""Kernels that exchange between ranks, by the libraries that name them (NCCL, RCCL, NVSHMEM, symmetric memory)."""
GROUPS = (
    ("optimizer", r"adam|multi_tensor_apply.*(fused|addcdiv|lerp|sqrt)|^_update"),
    ("communication", COMMUNICATION),
    ("attention", r"flash|fmha|sdpa|attention|softmax"),
    ("convolutions", r"conv(?!ert)|winograd|scudnn|[wd]grad|fprop"),
    ("matrix products", r"cijk_|gemm|nvjet|cutlass|cublas|xmma|s\d+816|splitkreduce|::kernel2|triton_tem"),
    ("gradient norm", r"norm.*(functor|multi_tensor)|lpnorm|multi_tensor_apply"),
    ("compiled pointwise and reductions", r"^triton_"),
    ("copies and casts", r"memcpy|memset|copy|fill|cat"),
    ("pointwise, uncompiled",
     r"elementwise|reduce|layer_norm|batch_?norm|bn_[fb]w|pool|index|gather|scatter|embedding|upsample"),
)


@dataclass(frozen=True)
class Group:
    """Kernels of one kind in a step: how many, and their milliseconds."""

    name: str
    kernels: int
    ms: float


def groups(step: Callable[[], object]) -> list[Group]:
    """Run `step` once under the profiler; its kernels by group, the costliest first. Needs a GPU."""
    import torch  # here: whoever groups the kernels of a trace needs no torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        step()
        torch.cuda.synchronize()
    rows = [(event.name, event.time_range.elapsed_us()) for event in profiled.events() or []
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("lf.")]
    return grouped(rows)


def grouped(kernels: list[tuple[str, float]]) -> list[Group]:
    """(name, microseconds) of each kernel as groups."""
    found: dict[str, list[float]] = {}
    for name, microseconds in kernels:
        found.setdefault(group(name), []).append(microseconds)
    rows = [Group(name, len(times), sum(times) / 1e3) for name, times in found.items()]
    return sorted(rows, key=lambda row: -row.ms)


def group(name: str) -> str:
    """The group of a kernel by its name; `other` where no rule knows it."""
    lower = name.lower()
    return next((title for title, pattern in GROUPS if re.search(pattern, lower)), "other")
