"""torch.compile, one repeated block at a time, in place.

Compiling whole blocks keeps every gap between blocks as a place where DDP can start sending gradients, and blocks of
one class share one compilation; a single graph over the model has neither (torchtitan compiles the same way).
Shapes are static: batches are of one size, and a second context length must not turn the first into a symbol.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from lfhelpers.recipe import Recipe


def apply(job: Recipe, blocks: Iterable[nn.Module]) -> None:
    """Compile the blocks where the recipe asks for it; must run before DDP wraps the model."""
    if job.compile.scope == "blocks":
        for block in blocks:
            block.compile(dynamic=False)


def graphs(job: Recipe) -> int:
    """Graphs compiled in this process so far: a number that grows after the warm-up means recompilation."""
    if job.compile.scope == "none":
        return 0
    from torch._dynamo.utils import counters  # heavy to import, so only where something is compiled

    return int(counters["stats"]["unique_graphs"])
