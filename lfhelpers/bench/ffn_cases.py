"""What `lfhelpers bench ffn` measures, each part in a process of its own: errors and kept bytes, kernels, the step."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lfhelpers.bench.trainer import Trainer
from lfhelpers.levers import gated_ffn_choice as choice
from lfhelpers.levers import gated_ffn_compare as compare
from lfhelpers.levers import gated_ffn_cuda, gated_ffn_op
from lfhelpers.levers.gated_ffn_compare import Shape
from lfhelpers.measure import bandwidth, hardware, statistics
from lfhelpers.recipe import recipe

STEPS = 5
LIMIT_S = 2.0
"""Of timing the implementations of one shape, dtype and direction, after three rounds."""
GOALS = 4
"""So many times the rounds and the time for bf16 both ways: what a training step does, and what goals are set for."""
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Case:
    """One shape; decoder: whether the model's gated FFN has it, or only its width."""

    name: str
    rows: int
    width: int
    hidden: int
    decoder: bool = True

    def shape(self, dtype: str, backward: bool) -> Shape:
        """In a dtype, forward alone or with backward."""
        return Shape(self.rows, self.width, self.hidden, dtype, backward)


CASES = (
    Case("decoder of full, 4 k rows", 4096, 2048, 6144), Case("decoder of full, 16 k rows", 16384, 2048, 6144),
    Case("decoder of small, 8 k rows", 8192, 768, 2304), Case("action width, 8 k rows", 8192, 1536, 6144, False),
    Case("vision width, 32 k rows", 32768, 1152, 4304, False))
TINY = (Case("tiny, 64 rows", 64, 96, 288),)
MODES = (("bfloat16", True), ("bfloat16", False), ("float32", True), ("float32", False))


def correctness(seeds: Sequence[int], kind: str) -> dict[str, Any]:
    """Errors in units of eager bf16's by implementation, the worst of all seeds and parts; and bytes kept.

    {"errors": {name: ratio}, "kept": {name: bytes}, "failed": {name: sentence}}
    """
    device = torch.device(kind)
    found: dict[str, Any] = {"errors": {}, "kept": {}, "failed": {}}
    eager = [compare.errors("eager", device, seed) for seed in seeds]
    decoder = (CASES if kind == "cuda" else TINY)[0].shape("bfloat16", True)
    found["kept"]["eager"] = compare.kept_bytes("eager", device, decoder)
    for name in ("compiled", *compare.PACKED) if kind == "cuda" else ("torch",):
        try:
            _refuse(name, device)
            ours = [compare.errors(name, device, seed) for seed in seeds]
            found["errors"][name] = max(one[part] / other[part] for one, other in zip(ours, eager, strict=True)
                                        for part in other)
            found["kept"][name] = compare.kept_bytes(name, device, decoder)
        except Exception as error:  # what a compiler raises; the others are still of interest
            found["failed"][name] = _first_line(error)
    return found


def kernels(case: Case, rounds: int, kind: str) -> dict[str, Any]:
    """All that is timed of a case: {"modes": {(dtype, backward): as _times has it}, "between": as _between has it}."""
    gpu = kind == "cuda"
    return {"modes": {mode: _times(case, *mode, rounds, kind) for mode in (MODES if gpu else MODES[:1])},
            "between": _between(case, rounds, kind) if gpu else {}}


def _times(case: Case, dtype: str, backward: bool, rounds: int, kind: str) -> dict[str, Any]:
    """Seconds a pass of every implementation, and which one the dispatcher takes after measuring by itself.

    {"seconds": {name: [s]}, "chosen": name, "failed": {name: sentence}, "peak_tflops", "flops"}
    """
    device, shape = torch.device(kind), case.shape(dtype, backward)
    measured = choice.measure(shape, device, compare.PACKED if kind == "cuda" else ("torch",))
    chosen = choice.keep(choice.situation(shape, 0), measured) if kind == "cuda" else choice.fastest(measured)
    sides, counts, failed = {}, {}, {}
    for name in (*compare.PLAIN, *compare.PACKED, "liger") if kind == "cuda" else ("eager", "torch"):
        try:
            _refuse(name, device)
            call = liger() if name == "liger" else compare.function(name)
            given = compare.weights(shape, name in compare.PACKED, device)
            work, counts[name] = compare.passes(call, given, shape, device)
            sides[name] = compare.ready(work, device)
        except Exception as error:
            failed[name] = _first_line(error)
    longer = GOALS if (dtype, backward) == MODES[0] else 1
    seconds = compare.timed(sides, longer * rounds, device, longer * LIMIT_S)
    return {"seconds": {name: [each / counts[name] for each in values] for name, values in seconds.items()},
            "chosen": chosen, "failed": failed, "peak_tflops": _peak(kind, "bf16" if dtype == "bfloat16" else "fp32"),
            "flops": shape.flops}


def _between(case: Case, rounds: int, kind: str) -> dict[str, Any]:
    """GB/s of the kernels between the products, bf16, each number counted once: {"gb_s": {"product triton": [..]}}."""
    device = torch.device(kind)
    packed = [torch.randn(case.rows, 2 * case.hidden, device=device).bfloat16() for _ in range(4)]
    grad = torch.randn(case.rows, case.hidden, device=device).bfloat16()
    sides: dict[str, Callable[[], object]] = {}
    for name, module in _modules(device).items():
        def product(module: Any = module) -> None:
            for each in packed:
                module.product(each)

        def gradient(module: Any = module) -> None:
            for each in packed:
                module.gradient(grad, each)
        for what, work in (("product", product), ("gradient", gradient)):
            sides[f"{what} {name}"] = compare.ready(work, device)
    moved = {"product": 3, "gradient": 6}  # numbers read and written for each of the product's
    size = 2 * case.rows * case.hidden * len(packed)
    found = compare.timed(sides, rounds, device, LIMIT_S)
    peak = bandwidth.peak_tb_s(torch.cuda.get_device_name())[0] if kind == "cuda" else None
    return {"gb_s": {name: [moved[name.split()[0]] * size / each / 1e9 for each in values]
                     for name, values in found.items()}, "peak_gb_s": 1e3 * peak if peak else None}


def _modules(device: torch.device) -> dict[str, Any]:
    """The modules with kernels of our own that work on the device."""
    modules = {"triton": getattr(gated_ffn_op, "gated_ffn_triton", None), "cuda": gated_ffn_cuda}
    return {name: module for name, module in modules.items() if gated_ffn_op.obstacle(name, device) is None}


def step(size: str, micro: int, blocks: int, kind: str) -> dict[str, Any]:
    """A step with compile.ffn=auto against off, in blocks that alternate.

    {"off": [s], "on": [s], "effect": Effect, "peak_gib": {"off": GiB, "on": GiB} or {}}
    """
    name = "full" if kind == "cuda" else "competent"
    job = recipe(name, f"workload.size={size}", f"batch.micro={micro}", "log.skip=5", "steps=1000", device=kind)
    trainers, peaks = {}, {}
    for side, ffn in (("off", "off"), ("on", "auto")):
        torch.compiler.reset()  # forms of the other side's blocks would count as recompilations
        gc.collect()
        before = _memory(reset=True)
        trainers[side] = Trainer(job.with_(**{"compile.ffn": ffn}))
        trainers[side].warm_up()
        peaks[side] = (_memory() - before) / 2**30
    compared = statistics.interleave(partial(trainers["off"].run, STEPS), partial(trainers["on"].run, STEPS), blocks,
                                     calls=1, settle=_settle)
    for trainer in reversed(trainers.values()):
        trainer.close()
    return {"off": [each / STEPS for each in compared.a], "on": [each / STEPS for each in compared.b],
            "effect": compared.effect, "peak_gib": peaks if kind == "cuda" else {}}


def liger() -> compare.Ffn:
    """Liger Kernel's silu and product between three products, as its SwiGLU MLP has them. RuntimeError without it."""
    if importlib.util.find_spec("liger_kernel") is None:
        raise RuntimeError("liger-kernel isn't installed")
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def call(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(LigerSiLUMulFunction.apply(F.linear(x, gate), F.linear(x, up)), down)
    return call


def _refuse(name: str, device: torch.device) -> None:
    why = gated_ffn_op.obstacle(name, device) if name in gated_ffn_op.KERNELS else None
    if why is not None:
        raise RuntimeError(why)


def _peak(kind: str, dtype: str) -> float | None:
    return hardware.peak_tflops(torch.cuda.get_device_name(), dtype)[0] if kind == "cuda" else None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory(reset: bool = False) -> int:
    """Most bytes in tensors since the last reset; with a reset, those that are there."""
    if not torch.cuda.is_available():
        return 0
    if reset:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()
