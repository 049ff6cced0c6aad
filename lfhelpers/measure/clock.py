"""The step clock: where each step's time goes, measured in every run.

On a GPU each phase ends with an event on the current stream, and events are read when the device has passed them: the
clock never makes the host wait. So a wait for data counts only as far as the GPU could not hide it. On CPU the phases
end with a reading of the host's clock. The phases of a step follow each other without gaps, so they sum to the step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer", "captured", "other")
"""`captured` is what a CUDA graph replays: forward, backward and perhaps the update in one."""


@dataclass
class _Step:
    """One step's marks; `stamps` are CUDA events, or seconds of the host's clock."""

    start: Any
    host_start: float
    marks: list[tuple[str, Any]] = field(default_factory=list)
    host_wait: float = 0.0
    host_end: float = 0.0
    meta: dict[str, Any] = field(default_factory=dict)
    values: Tensor | None = None


class StepClock:
    """Times steps made of phases: begin, any number of `phase` blocks, end; `ready` hands out finished steps."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._free: list[Any] = []
        self._pending: deque[_Step] = deque()
        self._step: _Step | None = None
        self._last: Any = None

    def begin(self) -> None:
        """Start a step, at the very point where the one before ended."""
        start = self._last if self._last is not None else self._stamp()
        self._step = _Step(start, time.perf_counter())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time since the last phase's end belongs to `name`, one of PHASES. Outside a step it does nothing."""
        began = time.perf_counter()
        with torch.profiler.record_function(f"lf.{name}"):
            yield
        self.mark(name, time.perf_counter() - began if name == "data_wait" else 0.0)

    def mark(self, name: str, host_wait: float = 0.0) -> None:
        """The same without a block, for what only an end is known of; host_wait: seconds that the host stood still."""
        if self._step is not None:
            self._step.marks.append((name, self._stamp()))
            self._step.host_wait += host_wait

    def end(self, values: Tensor | None = None, **meta: Any) -> None:
        """End the step. `values`, a small device tensor, travels to the host beside it and comes back with `meta`."""
        assert self._step is not None, "end without begin"
        step, self._step = self._step, None
        step.values = _to_host(values)
        self._last = self._stamp()
        step.marks.append(("other", self._last))
        step.host_end = time.perf_counter()
        step.meta = meta
        self._pending.append(step)

    def pause(self) -> None:
        """Leave out what happened since the last step's end (a checkpoint, a profile): the next step starts anew."""
        self._last = None

    def ready(self, wait: bool = False) -> list[dict[str, Any]]:
        """Steps whose device work has ended: step_ms, ms by phase, host_ms, values, and what `end` was given."""
        rows = []
        while self._pending:
            step = self._pending[0]
            stamp = step.marks[-1][1]
            if self._cuda and not stamp.query():
                if not wait:
                    break
                stamp.synchronize()
            rows.append(self._row(self._pending.popleft()))
        return rows

    def _row(self, step: _Step) -> dict[str, Any]:
        spent = dict.fromkeys(PHASES, 0.0)
        before = step.start
        for name, stamp in step.marks:
            spent[name] += self._milliseconds(before, stamp)
            before = stamp
        row = step.meta | {
            "step_ms": sum(spent.values()), "ms": spent,
            "host_ms": (step.host_end - step.host_start - step.host_wait) * 1e3,
            "values": step.values.tolist() if step.values is not None else [],
        }
        if self._cuda:  # the last event is the next step's start, so it stays out
            self._free += [step.start, *(stamp for _, stamp in step.marks[:-1])]
        return row

    def _stamp(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _milliseconds(self, before: Any, after: Any) -> float:
        return before.elapsed_time(after) if self._cuda else (after - before) * 1e3


def _to_host(values: Tensor | None) -> Tensor | None:
    if values is None or values.device.type == "cpu":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)
