"""Implementations of one gated FFN held against each other: error, kept bytes and time, on random data.

For its time on a GPU each is recorded into a CUDA graph, so that kernels are compared and not how fast Python launches
them (a step of the recipe `full` runs in a graph as well). Inputs take turns, and together they are larger than the
GPU's cache: in a model, too, other layers' data has been through it in between. Replays alternate.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lfhelpers.levers import graphs
from lfhelpers.levers.gated_ffn_op import KERNELS, gated

PLAIN = ("eager", "compiled")
"""The FFN as it stands in the model, three products and no fusion by hand: run as it is, and by torch.compile."""
PACKED = ("torch", "compile", "triton", "cuda")
"""One product for both first weights, and the operator: as it is, made by Inductor, and its two kernels by hand."""
SETS = (2, 16)
CACHE_BYTES = 2 * 60e6  # twice the largest L2 of a Hopper GPU
Ffn = Callable[..., Tensor]


class Shape(NamedTuple):
    """Rows of x, its width, the hidden width, the dtype's name as `bfloat16`, and whether backward belongs to it."""

    rows: int
    width: int
    hidden: int
    dtype: str
    backward: bool

    @property
    def flops(self) -> float:
        """Of the matrix products, a product and a sum each; backward costs two forwards."""
        return 6.0 * self.rows * self.width * self.hidden * (3 if self.backward else 1)


MOVED = {"eager, an operator at a time": (5, 9), "one kernel each way, the product made anew": (3, 6),
         "inside the matrix products": (1, 4)}
"""Numbers that are read or written for each one of silu(gate) * up, forward and backward, by ways to compute it."""
SMALL = Shape(256, 128, 512, "bfloat16", True)
"""Enough for errors, which don't depend on size."""


def predicted_s(shape: Shape, way: str, tflops: float, tb_s: float) -> float:
    """Seconds of the FFN if products ran at `tflops` and all between them at `tb_s`, the way being one of MOVED."""
    numbers = MOVED[way][0] + MOVED[way][1] * shape.backward
    moved = shape.rows * shape.hidden * getattr(torch, shape.dtype).itemsize * numbers
    return shape.flops / (tflops * 1e12) + moved / (tb_s * 1e12)


def plain_ffn(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x)) as the model has it."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def packed_ffn(x: Tensor, into: Tensor, down: Tensor, kernel: str = "torch") -> Tensor:
    """The same from one first weight, `into` [2 * hidden, width], through the operator."""
    return gated(F.linear(x, into), down, kernel)


def function(name: str) -> Ffn:
    """The implementation of that name, of PLAIN or PACKED: called with x and the weights that `weights` gives."""
    if name in KERNELS:
        return lambda x, into, down: packed_ffn(x, into, down, name)
    if name == "eager":
        return plain_ffn
    return torch.compile(plain_ffn if name == "compiled" else packed_ffn, dynamic=False)


def weights(shape: Shape, packed: bool, device: torch.device, seed: int = 0,
            kind: torch.dtype | None = None) -> list[Tensor]:
    """[gate, up, down], or [into, down] with the same numbers, scaled so that outputs are about as large as inputs.

    kind: another dtype in which to hold what the shape's own can hold.
    """
    made = torch.Generator(device).manual_seed(seed)
    sizes = ((2 * shape.hidden, shape.width), (shape.width, shape.hidden))
    into, down = (torch.randn(size, generator=made, device=device).div_(size[1]**0.5).to(getattr(torch, shape.dtype))
                  for size in sizes)
    parts = [into, down] if packed else [*into.chunk(2), down]
    return [part.to(kind or part.dtype, copy=True).requires_grad_() for part in parts]


def errors(name: str, device: torch.device, seed: int, shape: Shape = SMALL) -> dict[str, float]:
    """How far output and gradients are from float64's, as a share of their length: out, x, gate, up and down.

    All implementations get the same numbers, which the shape's dtype can hold, and the same gradient of the output.
    """
    made = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    x, grad = (torch.randn(shape.rows, shape.width, generator=made, device=device).to(dtype) for _ in range(2))
    found, exact = (_results(each, x.to(kind), grad.to(kind), weights(shape, packed, device, seed, kind))
                    for each, kind, packed in ((name, dtype, name in PACKED), ("eager", torch.float64, False)))
    return {part: ((found[part].double() - exact[part]).norm() / exact[part].norm()).item() for part in exact}


def kept_bytes(name: str, device: torch.device, shape: Shape) -> int:
    """Bytes that autograd keeps between forward and backward, beside the weights: each storage once."""
    given = weights(shape, name in PACKED, device)
    x = torch.randn(shape.rows, shape.width, device=device, dtype=getattr(torch, shape.dtype), requires_grad=True)
    kept = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = function(name)(x, *given)
    for weight in given:
        kept.pop(weight.untyped_storage().data_ptr(), None)
    del out
    return sum(kept.values())


def passes(call: Ffn, given: Sequence[Tensor], shape: Shape, device: torch.device) -> tuple[Callable[[], object], int]:
    """A function that takes the FFN, and its backward where the shape says so, over inputs in turn; and how many."""
    dtype = getattr(torch, shape.dtype)
    count = int(min(max(CACHE_BYTES / (shape.rows * shape.width * dtype.itemsize), SETS[0]), SETS[1]))
    inputs = [torch.randn(shape.rows, shape.width, device=device, dtype=dtype) for _ in range(count)]

    def forward() -> None:
        with torch.no_grad():
            for x in inputs:
                call(x, *given)

    def both() -> None:
        for x, grad in zip(inputs, [*inputs[1:], inputs[0]], strict=True):
            x = x.detach().requires_grad_()
            torch.autograd.grad(call(x, *given), [x, *given], grad)
    return (both if shape.backward else forward), count


def ready(work: Callable[[], object], device: torch.device, warmup: int = 3) -> Callable[[], object]:
    """The work, once all that is lazy has happened; on a GPU the replay of a recording. Raises what CUDA says."""
    if device.type == "cpu":
        work()
        return work
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            work()

        def whole(*_: object) -> graphs.Tensors:
            work()
            return {}
        recorded = graphs.on_cuda(whole, {}, None)
    torch.cuda.current_stream().wait_stream(stream)

    def replay(_inputs: Callable[[], object] = work) -> None:  # a recording reads addresses, which must stay taken
        recorded.replay()
    return replay


def timed(sides: Mapping[str, Callable[[], object]], rounds: int, device: torch.device,
          limit_s: float = 2.0) -> dict[str, list[float]]:
    """Seconds of each side, called once a round; from the fourth on no round begins after limit_s.

    Each round has an order of its own: a GPU at its power limit slows whoever follows the one that drew most.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    shuffled, began = random.Random(0), time.perf_counter()
    for turn in range(rounds):
        if turn >= 3 and time.perf_counter() - began > limit_s:
            break
        for name in shuffled.sample(list(sides), len(sides)):
            found[name].append(_once(sides[name], device))
    return found


def _results(name: str, x: Tensor, grad: Tensor, given: list[Tensor]) -> dict[str, Tensor]:
    """Output and gradients of one pass, the packed weight's as gate's and up's."""
    x.requires_grad_()
    out = function(name)(x, *given)
    to_x, *to_into, to_down = torch.autograd.grad(out, [x, *given], grad)
    gate, up = to_into if len(to_into) == 2 else to_into[0].chunk(2)
    return {"out": out.detach(), "x": to_x, "gate": gate, "up": up, "down": to_down}


def _once(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
