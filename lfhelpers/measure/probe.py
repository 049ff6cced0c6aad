"""One profiled step: how many operators it runs, how often the host reads a value back, and which operators cost most.

The profiler slows the step, so its times are kept out of the statistics; counts are exact at any speed. A run profiles
its last step, so that whatever a profiler leaves attached in the driver slows none that is timed.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lfhelpers.measure.exposed import Exposure, of_events
from lfhelpers.measure.timeline import outermost

# Operators that hand a value of the device to the host: each makes the host wait for all work queued before it.
HOST_READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::_assert_async")
WORKING_PHASES = ("forward", "backward", "optimizer")


class Probe:
    """A context around one step; `result` afterwards gives the counts."""

    def __init__(self, device: torch.device, step: int) -> None:
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        self._device = device
        self._step = step
        self._profile = profile(activities=activities, acc_events=True)

    def __enter__(self) -> Probe:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)

    def exposure(self) -> Exposure:
        """Which part of this rank's communication no computation hid, also in a replayed CUDA graph."""
        return of_events(self._profile.events() or [], self._device.type == "cuda")

    def result(self) -> dict[str, Any]:
        """Counts of operators by phase, kernels (None without a GPU), host reads, and the ten most costly operators."""
        events = self._profile.events() or []
        on_host = [event for event in events if event.device_type == torch.autograd.DeviceType.CPU]
        spans = {name: [event.time_range for event in on_host if event.name == f"lf.{name}"] for name in WORKING_PHASES}
        # Outermost operators alone: what they call inside costs far less than a call from Python or autograd.
        starts = [event.time_range.start for event in outermost(on_host)]
        counts = {name: sum(any(span.start <= start < span.end for span in spans[name]) for start in starts)
                  for name in WORKING_PHASES}
        ours = {event.thread for event in on_host if event.name.startswith("lf.")}
        kernels = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
        return {
            "step": self._step,
            "operators": counts | {"total": len(starts)},
            "kernels": len(kernels) if self._device.type == "cuda" else None,
            "host_reads": sum(event.name in HOST_READS and not _on_host_alone(event, ours) for event in on_host),
            "tiny_operator_us": tiny_operator_us(self._device),
            "top": self._top(),
        }

    def _top(self) -> list[dict[str, Any]]:
        on_gpu = self._device.type == "cuda"
        rows = [{"name": row.key, "calls": row.count,
                 "self_ms": (row.self_device_time_total if on_gpu else row.self_cpu_time_total) / 1e3}
                for row in self._profile.key_averages() if not row.key.startswith(("lf.", "ProfilerStep"))]
        return sorted(rows, key=lambda row: -row["self_ms"])[:10]


def _on_host_alone(event: Any, ours: set[int]) -> bool:
    """Whether the value read was on the CPU anyway, so that nobody waited for it; `ours` are the threads of the loop.

    These are the optimizer's step counters, what CPU foreach loops over, and DDP's map of used parameters, which it
    reads behind backward's last node: below no node of the graph, and with a GPU in a thread of autograd's own.
    """
    above, parent = [], event.cpu_parent
    while parent is not None:
        above.append(parent.name)
        parent = parent.cpu_parent
    elsewhere = bool(ours) and event.thread not in ours
    of_ddp = above == ["aten::item", "lf.backward"] or (above == ["aten::item"] and elsewhere)
    return of_ddp or any(name.startswith(("Optimizer.step#", "aten::_foreach_")) for name in above)


def tiny_operator_us(device: torch.device, rounds: int = 21, calls: int = 100) -> float:
    """Microseconds of the host that one operator on a single element costs here: the least that any operator costs.

    The median of short rounds: a core that is taken away meanwhile makes one of them long.
    """
    tensor = torch.zeros(1, device=device)
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            tensor.add_(1.0)
        took.append(time.perf_counter() - start)
    return statistics.median(took) / calls * 1e6
