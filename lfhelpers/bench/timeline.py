"""A window of one training step as it ran: what the host launched and when, and what the GPU did meanwhile.

One JSON file holds such a window for the as-found and the full step, so that a lesson on a machine without a GPU can
draw the gaps between kernels from a real trace. `traces` leaves whole steps of both as profiler traces, thinned, which
the same lesson diagnoses and compares.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import orjson
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from lfhelpers import runs
from lfhelpers.bench.step import Case, ladder
from lfhelpers.bench.trainer import Trainer
from lfhelpers.diagnose.trace.load import PAIR
from lfhelpers.diagnose.trace.thin import thin
from lfhelpers.errors import LfError
from lfhelpers.measure import chrome_trace, hardware, isolated
from lfhelpers.measure.timeline import HOST, Span, span_of, typical

WINDOW_US = 4000.0
NAME = 60
TRACED = 3
"""Steps of a trace: as many as a verdict needs."""
MOST = 1_000_000
"""Bytes of each trace: the pair lies beside the records of a machine, in git."""


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


def traces(case: Case, folder: Path, most: int = MOST) -> tuple[Path, Path]:
    """Trace TRACED steps of the case as found and in full, on whatever this machine has, into `folder`.

    Returns the pair that diagnose.trace.load.recorded_pair finds, each of at most `most` bytes. Batches lie on the
    device, so no step waits for a loader. Raises LfError where a step's trace is larger, and leaves neither then.
    """
    rungs = ladder(case)
    with tempfile.TemporaryDirectory() as place:
        made = [Path(place) / name for name in PAIR]
        for path, (_, job) in zip(made, (rungs[0], rungs[-1]), strict=True):
            whole = Path(place) / f"whole-{path.name}"
            isolated.call(_traced, job, whole, timeout=200)
            thin(whole, path, most)
        folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            runs.write_atomic(folder / path.name, path.read_bytes())
    return folder / PAIR[0], folder / PAIR[1]


def _traced(job: Any, path: Path) -> float:
    """Megabytes of the trace of TRACED warm steps."""
    trainer = Trainer(job)
    trainer.warm_up()
    cuda = [ProfilerActivity.CUDA] if hardware.device(job.device)[0] == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True,
                 schedule=schedule(wait=0, warmup=1, active=TRACED, repeat=1),
                 on_trace_ready=lambda done: chrome_trace.write(done, path)) as profiler:
        for _ in range(1 + TRACED):
            trainer.run(1)
            profiler.step()
    trainer.close()
    return path.stat().st_size / 1e6


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
