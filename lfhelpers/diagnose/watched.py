"""The step report for a loop that stays the user's: `for batch in lf.watch(loader, model, optimizer)`.

Where a step's time goes is read off by marks at the ends of its parts: the loader has handed over, the model's forward
begins and ends, the optimizer begins and ends. On a GPU they are events, read when the device has passed them, so the
loop is never made to wait. The price of touching nothing: the loss is counted with backward, since nobody tells where
it ends, and what the loop does between its batch and forward is taken for the copy to the device.

Nothing here raises into the loop, and the hooks go when the loop ends.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from lfhelpers.diagnose.watch_report import WatchReport
from lfhelpers.errors import LfError
from lfhelpers.measure import chrome_trace
from lfhelpers.measure.clock import PHASES, StepClock

KEPT = 10_000
"""Steps whose times are kept, the newest; a report over an epoch of millions needs no more."""
TRACED = 3


class Watch:
    """Collects the marks of one loop, whoever sets them: `begin`, `mark` and `end` for each step, then `report`."""

    def __init__(self, device: torch.device, skip: int = 5, facts: Mapping[str, Any] | None = None) -> None:
        """skip: first steps that are not counted. facts: what is known of the loop, for the remedies' words."""
        self._clock = StepClock(device)
        self._device, self._skip, self._facts = device, skip, dict(facts or {})
        self._rows: list[dict[str, Any]] = []
        self._running, self._forwarded, self._begun = False, False, 0
        self.traces: Path | None = None
        """The folder of a trace of some of the steps, where one was recorded."""

    def begin(self) -> None:
        """A step begins where the one before has ended."""
        self._clock.begin()
        self._running, self._forwarded = True, False

    def forward_begins(self) -> None:
        """What came before is the way of the batch to the model; before a step's second forward, the first one's loss.
        """
        self.mark("backward" if self._forwarded else "host_to_device")
        self._forwarded = True

    def mark(self, phase: str, host_wait: float = 0.0) -> None:
        """Time since the last mark belongs to `phase`, one of clock.PHASES."""
        if self._running:
            self._clock.mark(phase, host_wait)

    def end(self, samples: int = 0, keep: bool = True, load_cpu: float = 0.0) -> None:
        """The step ends; without `keep` it is not counted. load_cpu: CPU seconds of this thread in its wait for data.
        """
        if not self._running:
            return
        self._running, self._begun = False, self._begun + 1
        self._clock.end(samples=samples, kept=keep and self._begun > self._skip, load_cpu=load_cpu)
        if self._begun % 16 == 0 or self._device.type == "cpu":
            self._collect()

    def pause(self) -> None:
        """Leave out what happens until the next begin: an evaluation, a checkpoint."""
        self._running = False
        self._clock.pause()

    def report(self) -> WatchReport:
        """Where the steps' time went; waits for the device."""
        self._collect(wait=True)
        rows = self._rows
        ms = {phase: statistics.fmean(row["ms"][phase] for row in rows) if rows else 0.0
              for phase in PHASES if phase != "captured"}
        samples = sum(row["samples"] for row in rows)
        spent = sum(row["step_ms"] for row in rows) / 1e3
        return WatchReport(
            steps=len(rows), ms=ms,
            step_ms=tuple(row["step_ms"] for row in rows),
            host_ms=statistics.fmean(row["host_ms"] for row in rows) if rows else 0.0,
            load_cpu_ms=1e3 * statistics.fmean(row["load_cpu"] for row in rows) if rows else 0.0,
            samples_per_s=samples / spent if spent else 0.0, device=self._device.type, facts=self._facts,
            traces=self.traces)

    def _collect(self, wait: bool = False) -> None:
        self._rows += [row for row in self._clock.ready(wait) if row["kept"]]
        del self._rows[:-KEPT]


class Watched:
    """A loader whose loop is watched; iterate it in place of the loader. `report()` is for the last loop over it.

    Raises LfError where one of the three is something else, as in another order.
    """

    def __init__(self, loader: Iterable[Any], model: nn.Module, optimizer: torch.optim.Optimizer, *, skip: int = 5,
                 trace: Path | None = None, show: bool = True) -> None:
        for part, role, kind, lacking in ((loader, "loader", Iterable, "can't be iterated"),
                                          (model, "model", nn.Module, "is no torch.nn.Module"),
                                          (optimizer, "optimizer", torch.optim.Optimizer, "is no torch optimizer")):
            if not isinstance(part, kind):
                raise LfError(f"lf.watch: the {role} is of type {type(part).__name__}, which {lacking}; call "
                              "lf.watch(loader, model, optimizer), in this order.")
        self._loader, self._model, self._optimizer = loader, model, optimizer
        self._skip, self._trace, self._show = skip, trace, show
        self._watch: Watch | None = None

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises as the loader itself does

    def __iter__(self) -> Iterator[Any]:
        watch = self._watch = Watch(device_of(self._model), self._skip, facts_of(self._loader, self._optimizer))
        try:
            with hooked(watch, self._model, self._optimizer), _traced(watch, self._trace) as stepped:
                yield from self._steps(watch, stepped)
        except GeneratorExit:  # the loop was left by break
            self._tell(watch)
            raise
        self._tell(watch)

    def report(self) -> WatchReport:
        """The report of the last loop, also of one that is under way or was left by `break`."""
        watch = self._watch or Watch(device_of(self._model))
        return watch.report()

    def _tell(self, watch: Watch) -> None:
        if self._show and not sys.is_finalizing():
            print(watch.report().table(), flush=True)

    def _steps(self, watch: Watch, stepped: Callable[[int], bool]) -> Iterator[Any]:
        watch.begin()  # the workers' start belongs to the first step, which is not counted
        batches, number = iter(self._loader), 0
        while True:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                batch = next(batches)
            except StopIteration:
                return
            watch.mark("data_wait", time.perf_counter() - began)
            cpu = time.thread_time() - cpu
            try:
                yield batch
            finally:
                watch.end(samples_of(batch), keep=not stepped(number), load_cpu=cpu)
            number += 1
            watch.begin()


@contextlib.contextmanager
def hooked(watch: Watch, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """For the block, the model's forward sets its marks, and the optimizer's step where one is given."""
    handles = [model.register_forward_pre_hook(_uncompiled(model, lambda *_: watch.forward_begins())),
               model.register_forward_hook(_uncompiled(model, lambda *_: watch.mark("forward")))]
    if optimizer is not None:
        handles += [optimizer.register_step_pre_hook(lambda *_: watch.mark("backward")),
                    optimizer.register_step_post_hook(lambda *_: watch.mark("optimizer"))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _uncompiled(model: nn.Module, mark: Callable[..., None]) -> Callable[..., None]:
    """A compiled model would take the clock's reading into its graph."""
    if getattr(model, "_compiled_call_impl", None) is None:
        return mark
    return torch.compiler.disable(mark)


@contextlib.contextmanager
def _traced(watch: Watch, folder: Path | None) -> Iterator[Callable[[int], bool]]:
    """Records three steps after the warm-up, where a folder is given; tells of each step whether it was disturbed."""
    if folder is None:
        yield lambda number: False
        return
    cuda = [ProfilerActivity.CUDA] if watch._device.type == "cuda" else []
    first, last = watch._skip + 1, watch._skip + 2 + TRACED
    folder.mkdir(parents=True, exist_ok=True)  # now: the loop is to hear of a folder that can't be before it begins

    def done(profiler: Any) -> None:
        chrome_trace.write(profiler, folder / "rank-0.json.gz")
        watch.traces = folder

    with profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=bool(cuda), on_trace_ready=done,
                 schedule=schedule(wait=first, warmup=1, active=TRACED, repeat=1)) as profiler:
        def stepped(number: int) -> bool:
            profiler.step()
            return first - 1 <= number <= last + 1

        yield stepped


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is."""
    parameter = next(model.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")


def facts_of(loader: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the remedies' words depend on: the loader's workers and pinning (None for no DataLoader), a fused update."""
    return {"workers": getattr(loader, "num_workers", None), "pinned": getattr(loader, "pin_memory", None),
            "fused": bool(getattr(optimizer, "defaults", {}).get("fused"))}


def samples_of(batch: Any) -> int:
    """The first dimension of the first tensor in a batch; 0 where there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    parts: Sequence[Any] = list(batch.values()) if isinstance(batch, Mapping) else \
        batch if isinstance(batch, list | tuple) else ()
    return next((found for part in parts if (found := samples_of(part))), 0)
