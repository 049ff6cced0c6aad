"""A new shape in every batch: torch.compile compiles again and again, then gives up without a word."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lfhelpers.levers.compile_health import Health
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "the compiled run is slower than the eager one, and its memory grows; with reduce-overhead and max-autotune by a "
    "recorded CUDA graph for each shape, since both use graphs",
    "lengths differ from batch to batch, and each is a new graph, until recompile_limit",
    "pad to one length or a few; lfhelpers counts recompilations and ends a run that passes the limit",
    "compilations for six batches")
LENGTHS = (16, 19, 17, 22, 18, 21)


def break_it() -> float:
    """Compilations where each batch keeps its length."""
    return float(_compiled(pad=False)[0])


def detect(broken: bool = True) -> str:
    """What the run's compilation report says; empty where nothing was compiled twice."""
    again = _compiled(pad=not broken)[1]
    return f"{len(again)} recompilations: {again[0]['guard']}" if again else ""


def fix_it() -> float:
    """Compilations where all batches are padded to the longest."""
    return float(_compiled(pad=True)[0])


@functools.cache
def _compiled(pad: bool) -> tuple[int, list[dict[str, Any]]]:
    """(compilations, the report's recompilations)."""
    made = []

    def backend(module: Any, _: Any) -> Any:
        made.append(module)
        return module.forward

    def forward(x: Tensor) -> Tensor:
        return (x * 2).sum()
    torch._dynamo.reset()
    compiled = torch.compile(forward, backend=backend, dynamic=False)
    health = Health()
    with health.listening():
        for length in LENGTHS:
            compiled(torch.ones(max(LENGTHS) if pad else length))
        report = health.report()
    return len(made), report["recompilations"]
