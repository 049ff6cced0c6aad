"""A window of one training step as it ran: what the host launched and when, and what the GPU did meanwhile.

One JSON file holds such a window for the as-found and the full step, so that a lesson on a machine without a GPU can
draw the gaps between kernels from a real trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import torch
from torch.profiler import ProfilerActivity, profile

from lfhelpers import runs
from lfhelpers.bench.step import Case, ladder
from lfhelpers.bench.trainer import Trainer
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware, isolated
from lfhelpers.measure.timeline import HOST, Span, span_of, typical

WINDOW_US = 4000.0
NAME = 60


def record(case: Case, out: Path) -> Path:
    """Write {rung: [[lane, name, start_us, end_us], ...], ...} with hardware, versions and commit beside it.

    Lanes are `host` and `stream N`. Raises LfError where there is no GPU.
    """
    if hardware.device()[0] != "cuda":
        raise LfError("a timeline of launches and kernels needs a GPU, and this machine has none.")
    rungs = ladder(case)
    windows = {name: isolated.call(_window, job, timeout=200) for name, job in (rungs[0], rungs[-1])}
    facts = hardware.describe()
    content = {"case": case.name, "window_us": WINDOW_US, "windows": windows,
               **{key: facts[key] for key in ("hardware", "versions", "commit", "time")}}
    out.parent.mkdir(parents=True, exist_ok=True)
    runs.write_atomic(out, orjson.dumps(content) + b"\n")
    return out


def _window(job: Any) -> list[list[Any]]:
    trainer = Trainer(job)
    trainer.warm_up()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
        trainer.run(1)
        torch.cuda.synchronize()
    spans = [span for event in profiled.events() or [] if (span := _span(event)) is not None]
    return [[span.lane, span.name[:NAME], round(span.start_us, 1), round(span.end_us, 1)]
            for span in typical(spans, WINDOW_US)]


def _span(event: Any) -> Span | None:
    """An event of the profiler: kernels and copies by stream, and the host's calls that launch them."""
    if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("lf."):
        return span_of(event, f"stream {getattr(event, 'device_resource_id', 0)}")
    return span_of(event, HOST) if event.name.startswith("cu") and "Launch" in event.name else None
