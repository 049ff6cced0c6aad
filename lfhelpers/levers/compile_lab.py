"""Small experiments on compilation, for a notebook: modules that compile in seconds, under the same lever as a run's.

They show what is often believed wrongly: that compiling more at once is better, that compiled code fits all shapes, and
that a decision on a value becomes part of the graph.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lfhelpers.levers.compile import session
from lfhelpers.recipe import recipe


class Ffn(nn.Module):
    """A gated FFN with its residual, [rows, width] to the same."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x + down(silu(gate(x)) * up(x))."""
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Decides(Ffn):
    """Asks a value of the device before it goes on: the host must have it, so no graph can hold both sides."""

    def forward(self, x: Tensor) -> Tensor:
        """Scaled down where a value is above 1, then as Ffn."""
        if x.abs().max() > 1:
            x = x / x.abs().max()
        return super().forward(x)


def compiled(blocks: Sequence[nn.Module], inputs: Sequence[Tensor],
             *overrides: str) -> tuple[list[Tensor], dict[str, Any]]:
    """The outputs of the blocks in a row for each input, compiled with empty caches, and the compilation's report.

    overrides: of the recipe's compile fields, as "compile.scope=model". Raises LfError at the recompile limit.
    """
    job = recipe("competent", "compile.scope=blocks", "compile.cache=false", *overrides)
    torch.compiler.reset()
    model = nn.Sequential(*blocks)
    with _quiet(), session(job, torch.device("cpu")) as compilation:
        compilation.apply(model, blocks)
        outputs = [model(x) for x in inputs]
        return outputs, compilation.report()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without dynamo's warnings: what they say is in the report, or raised."""
    log = logging.getLogger("torch._dynamo")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
