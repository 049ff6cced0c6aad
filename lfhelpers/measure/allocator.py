"""What the device's allocator does with memory: the peak of a piece of work, what is held in reserve, and a snapshot.

`peak` is what the algorithm needs; on a GPU what must fit is what the allocator has reserved, which is more by the
pools of CUDA graphs and by pieces too small to be used (fragmentation). On a CPU the peak comes from the profiler's
memory events, in exact bytes, since a CPU has no such counters; there is nothing in reserve to report.

Source: PyTorch's notes on CUDA memory management and 'Understanding CUDA memory usage'.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lfhelpers import runs
from lfhelpers.errors import LfError

EVENTS = 100_000
"""Allocations that a snapshot remembers; without a bound its file grows by gigabytes."""


@dataclass(frozen=True)
class Reserve:
    """A GPU's memory now, in bytes, as the allocator of this process holds it."""

    allocated: int
    """In tensors."""
    reserved: int
    """Taken from the device: what must fit."""
    graph_pools: int
    """Of the reserved, in pools of CUDA graphs, which nothing else may use."""
    fragments: int
    """Reserved outside graph pools, and not in use: free pieces, kept for later or too small for what is asked."""
    retries: int
    """Times that the cache had to be emptied: more than 0 makes timings wrong."""


def peak(work: Callable[[], object], device: torch.device) -> int:
    """Most bytes in use at any moment of `work`, beyond those in use before it.

    On a CPU by the profiler (its own work makes `work` slow); what was there before and is freed counts as still there.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True,
                                acc_events=True) as profiled:
        work()
    recorder: Any = profiled.profiler
    changes = sorted((event.start_ns(), event.nbytes()) for event in recorder.kineto_results.events()
                     if event.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def reserve(device: torch.device) -> Reserve | None:
    """The GPU's memory as its allocator holds it; None on a CPU."""
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    segments = [segment for segment in torch.cuda.memory.memory_snapshot() if segment["device"] == (device.index or 0)]
    pooled = [segment for segment in segments if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)]
    pools = sum(segment["total_size"] for segment in pooled)
    allocated, reserved = stats.get("allocated_bytes.all.current", 0), stats.get("reserved_bytes.all.current", 0)
    inside = sum(segment["allocated_size"] for segment in pooled)
    return Reserve(allocated, reserved, pools, max(0, (reserved - pools) - (allocated - inside)),
                   stats.get("num_alloc_retries", 0))


def snapshot(work: Callable[[], object], device: torch.device, path: Path) -> Path:
    """Write each allocation of `work` to a file that pytorch.org/memory_viz draws, with Python's stacks.

    Raises LfError on a CPU, which keeps no such history.
    """
    if device.type != "cuda":
        raise LfError("a memory snapshot records a GPU's allocator, and this machine computes on its CPU; count saved "
                      "activations instead (lfhelpers.measure.memory.counted), which works on both.")
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, stacks="python")
    try:
        work()
        torch.cuda.synchronize(device)
        content = pickle.dumps(torch.cuda.memory._snapshot(device))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    path.parent.mkdir(parents=True, exist_ok=True)
    runs.write_atomic(path, content)
    return path
