"""Communication that nothing hides, from what ran when: on a GPU's timeline, or on the threads of a CPU.

Time in which gradients travel costs nothing while kernels compute, so the time that counts is what is left of it when
computation is taken away: |communication \\ computation|. A collective ends everywhere at the same moment, but a rank
that is early waits in it for the others, and its kernel is as long as the wait. Only the rank that came last shows the
transfer alone: transfer is the least duration of all ranks, the rest of each rank's own is waiting. Buckets, hooks and
faster links shorten the transfer; waiting is cured where the late rank loses its time.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lfhelpers.measure import intervals, kernels
from lfhelpers.measure.timeline import Span, outermost, span_of, times

Interval = tuple[float, float]
COMMUNICATION = re.compile(rf"{kernels.COMMUNICATION}|gloo:", re.IGNORECASE)
"""Names of kernels that move data between ranks, and gloo's operators on a CPU."""
ANNOTATION = re.compile(r"^(lf\.|nccl:|ProfilerStep|Optimizer\.|## )|^(DistributedDataParallel|Torch-Compiled)")
"""Rows of a device's timeline that are brackets around kernels, not kernels."""
COPY = re.compile(r"^(memcpy|memset)", re.IGNORECASE)
"""Copies hide nothing: a bus works, not the processor that gradients compete with."""


@dataclass(frozen=True)
class Exposure:
    """One rank's step, in milliseconds; `collectives` are (start, end) of each in order, from the step's first work."""

    step_ms: float
    computing_ms: float
    communicating_ms: float
    exposed_ms: float
    collectives: tuple[Interval, ...]

    @property
    def share(self) -> float:
        """Exposed communication as a share of the step, 0 to 1."""
        return self.exposed_ms / self.step_ms if self.step_ms else 0.0

    @property
    def durations(self) -> list[float]:
        """Milliseconds of each collective."""
        return [end - start for start, end in self.collectives]


def is_communication(name: str) -> bool:
    """Whether a kernel or operator moves data between ranks, by its name."""
    return bool(COMMUNICATION.search(name)) and not ANNOTATION.search(name)


def exposure(computing: Iterable[Span], communicating: Iterable[Span]) -> Exposure:
    """The exposure of what one rank ran, spans in microseconds of one clock."""
    compute, collectives = list(computing), sorted(communicating, key=lambda span: span.start_us)
    if not compute and not collectives:
        return Exposure(0.0, 0.0, 0.0, 0.0, ())
    begin = min(span.start_us for span in (*compute, *collectives))
    end = max(span.end_us for span in (*compute, *collectives))
    busy, moving = times(compute), times(collectives)
    alone = intervals.subtract(moving, busy)
    busy_ms, moving_ms, alone_ms = (intervals.total(part) / 1e6 for part in (busy, moving, alone))
    return Exposure((end - begin) / 1e3, busy_ms, moving_ms, alone_ms,
                    tuple(((span.start_us - begin) / 1e3, (span.end_us - begin) / 1e3) for span in collectives))


@dataclass(frozen=True)
class Split:
    """Milliseconds that the fastest rank needed, and what the others waited for late ones, as the mean over ranks."""

    transfer_ms: float
    waiting_ms: float


def split(ranks: Sequence[float]) -> Split:
    """One collective's (or step's exposed) milliseconds on each rank, as transfer and waiting."""
    transfer = min(ranks)
    return Split(transfer, statistics.fmean(ranks) - transfer)


def split_each(ranks: Sequence[Sequence[float]]) -> list[Split]:
    """Collective by collective, matched by order from the last one back; what one rank alone has is left out.

    The order is the same on all ranks, since ranks that disagree about it wait for each other for ever.
    """
    count = min(len(durations) for durations in ranks)
    return [split(of_ranks) for of_ranks in zip(*(durations[len(durations) - count:] for durations in ranks),
                                                strict=True)]


def of_events(events: Iterable[Any], on_gpu: bool) -> Exposure:
    """The exposure of a profiled step, also of a replayed CUDA graph: torch.profiler's events of one rank.

    On a GPU all kernels count as computation but copies and collectives; on a CPU the outermost operators of the
    threads that don't communicate.
    """
    import torch  # a page that only draws needs none

    device = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    found = [event for event in events if event.device_type == device and event.time_range.elapsed_us() > 0]
    moving = [span_of(event) for event in found if is_communication(event.name)]
    if on_gpu:
        return exposure([span_of(event) for event in found if not is_communication(event.name)
                         and not ANNOTATION.search(event.name) and not COPY.search(event.name)], moving)
    return exposure([span_of(event) for event in outermost(found)], moving)
