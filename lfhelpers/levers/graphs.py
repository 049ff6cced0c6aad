"""CUDA graphs: a whole step's kernels recorded once and launched as one, so that the host's pace stops mattering.

A graph replays kernels on the very memory they were recorded on. So inputs are copied into buffers of the graph's own
(microseconds), results are read from its own, and nothing that changes from step to step may be decided on the host in
between. A function is recorded once per form of its inputs (shapes, dtypes and a `variant`), after `warmup` ordinary
calls of that form: they are real calls whose results count, in which everything lazy happens (compilation, autotuning,
DDP's buckets). A new form is recorded anew, never forced through an old graph. Where recording fails, the reason is
kept and all calls stay ordinary ones. The price is the graph's own memory pool, and seconds for each recording.

Captured with error mode "thread_local": threads that pin memory go on calling CUDA meanwhile.
Source: PyTorch's notes on CUDA graphs, with their rules for DDP (at least 11 warm-up steps, on a side stream).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Function = Callable[[Tensors, Any], Tensors]
DDP_WARMUP = 11
MOST_GRAPHS = 8
"""Forms of inputs that are recorded; each holds memory, and a run that meets more has no fixed shapes."""


@dataclass
class Recorded:
    """A recording: buffers that `replay` reads, results that it writes, and the seconds that recording took."""

    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], object]
    seconds: float


class Graphs:
    """Calls `function(inputs, variant) -> outputs` through one recording per form of the inputs.

    Outputs are the graph's own memory: they hold until the next call of the same form.
    """

    def __init__(self, function: Function, warmup: int,
                 record: Callable[[Function, Tensors, Any], Recorded] | None = None) -> None:
        self._function = function
        self._warmup = warmup
        self._record = record or on_cuda
        self._seen: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, Recorded] = {}
        self.obstacle: str | None = None
        """Why nothing (more) is recorded; None while all is well."""

    @property
    def count(self) -> int:
        """Recordings made."""
        return len(self._recorded)

    @property
    def seconds(self) -> float:
        """Seconds that recording took, all together."""
        return sum(recorded.seconds for recorded in self._recorded.values())

    def ready(self, inputs: Tensors, variant: Hashable = None) -> bool:
        """Whether `__call__` may be used for such inputs; until then make an ordinary call, which counts as warm-up."""
        form = _form(inputs, variant)
        if form in self._recorded:
            return True
        self._seen[form] += 1
        if self.obstacle or self._seen[form] <= self._warmup:
            return False
        if len(self._recorded) == MOST_GRAPHS:
            self.obstacle = f"inputs came in more than {MOST_GRAPHS} forms; fix the shapes (data.last='drop')"
            return False
        try:
            self._recorded[form] = self._record(self._function, inputs, variant)
        except RuntimeError as error:  # what CUDA refuses inside a graph; torch.AcceleratorError is one
            self.obstacle = str(error).strip().partition("\n")[0]
            return False
        return True

    def __call__(self, inputs: Tensors, variant: Hashable = None) -> Tensors:
        """The function's outputs. The form must be `ready`."""
        recorded = self._recorded[_form(inputs, variant)]
        for name, buffer in recorded.inputs.items():
            buffer.copy_(inputs[name], non_blocking=True)
        recorded.replay()
        return recorded.outputs


def on_cuda(function: Function, inputs: Tensors, variant: Any) -> Recorded:
    """Record on the present CUDA stream, which must not be the default one. RuntimeError where CUDA refuses."""
    began = time.perf_counter()
    stream = torch.cuda.current_stream()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what warm-up steps left in the ordinary pool, the graph's own pool can't use
    graph = torch.cuda.CUDAGraph()
    buffers = {name: value.clone() for name, value in inputs.items()}
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = function(buffers, variant)
    except RuntimeError:
        _release_generator(stream.device)
        raise
    torch.cuda.synchronize()
    return Recorded(buffers, outputs, graph.replay, time.perf_counter() - began)


def _release_generator(device: torch.device) -> None:
    """After a recording that broke off, torch's generator believes that it is still recorded; a copy of it doesn't."""
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())


def _form(inputs: Tensors, variant: Hashable) -> Hashable:
    return variant, tuple((name, value.shape, value.dtype, value.stride()) for name, value in inputs.items())
