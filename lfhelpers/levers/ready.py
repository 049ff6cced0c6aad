"""When each gradient is ready: the simulator's input, from real steps.

An ordinary step is watched with a hook on each parameter, which fires as its gradient is complete. A step replayed
from a CUDA graph runs no hooks, and an ordinary step of the same model is slower by its launches. There the exchange
itself tells: with many small buckets on a fast link a bucket's kernel starts the moment its last gradient is ready, so
one profiled replay gives as many times as there are buckets. They are upper bounds: a kernel that starts as the one
before it ends may have waited for that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers.buckets_sim import Gradient
from lfhelpers.levers.overlap import Bucket, form
from lfhelpers.measure.exposed import Interval

FINE_MB = 16.0
"""Buckets small enough to tell times apart, and large enough for a fast link to have sent each before the next."""


def watched(model: nn.Module, step: Callable[[], object], repeats: int = 5) -> list[Gradient]:
    """The gradients of `step`, which must run without exchange, in the order of readiness; medians over `repeats`.

    Milliseconds count from the beginning of the step. What gets no gradient is left out; of several micro-batches the
    last one counts. LfError where no hook fires, as in a step that is replayed from a CUDA graph.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    cuda = next(iter(trained.values())).is_cuda
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        marks: dict[str, Any] = {}
        hooks = [parameter.register_post_accumulate_grad_hook(_marking(marks, name, cuda))
                 for name, parameter in trained.items()]
        begin = _stamp(cuda)
        try:
            step()
        finally:
            for hook in hooks:
                hook.remove()
        if cuda:
            torch.cuda.synchronize()
        for name, mark in marks.items():
            times.setdefault(name, []).append(begin.elapsed_time(mark) if cuda else 1e3 * (mark - begin))
    if not times:
        raise LfError("no gradient was seen to become ready; a step that is replayed from a CUDA graph runs no hooks, "
                      "so watch it with graph.scope='none' or profile a replay.")
    found = []
    for name, taken in times.items():
        size, dtype = form(trained[name])
        found.append(Gradient(name, size, statistics.median(taken), dtype))
    return sorted(found, key=lambda each: each.ready_ms)


def replayed(buckets: Sequence[Bucket], collectives: Sequence[Interval]) -> list[Gradient]:
    """The gradients of a profiled replay in the order of readiness, each as its bucket's collective started.

    buckets: those in force (overlap.buckets). collectives: of the same rank (measure.exposed); the last ones belong to
    the buckets. LfError where there are fewer collectives than buckets.
    """
    if len(collectives) < len(buckets) or not buckets:
        raise LfError(f"the profile shows {len(collectives)} collectives for {len(buckets)} buckets; profile one whole "
                      "step after its buckets were rebuilt.")
    last = collectives[len(collectives) - len(buckets):]
    return [Gradient(name, size, start, dtype) for bucket, (start, _) in zip(buckets, last, strict=True)
            for name, size, dtype in bucket.parameters]


def _marking(marks: dict[str, Any], name: str, cuda: bool) -> Callable[[nn.Parameter], None]:
    def mark(parameter: nn.Parameter) -> None:
        marks[name] = _stamp(cuda)
    return mark


def _stamp(cuda: bool) -> Any:
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
