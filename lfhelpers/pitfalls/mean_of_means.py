"""Accumulation that averages the micro-batches' mean losses: samples of a light micro-batch count too much."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lfhelpers.pitfalls.base import About

ABOUT = About(
    "a run with accumulation learns something slightly else than one with large batches",
    "each micro-batch's loss is a mean over its valid numbers, and loss / accumulate weighs all micro-batches alike",
    "sum losses and weights over micro-batches and ranks, and divide once",
    "error of the gradient against that of the whole batch [%]")


def break_it() -> float:
    """Percent of error where the mean of means is taken."""
    return _error(by_means=True)


def detect(broken: bool = True) -> str:
    """What a comparison with the whole batch says, which lfhelpers' tests make for every lever."""
    error = _error(by_means=broken)
    return f"the accumulated gradient is {error:.0f} % off the whole batch's" if error > 0.01 else ""


def fix_it() -> float:
    """The same where sums are divided once."""
    return _error(by_means=False)


def _error(by_means: bool) -> float:
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(8, 4, generator=generator), (torch.rand(8, generator=generator) < share).float())
               for share in (0.9, 0.5, 0.2)]
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    total = sum(float(valid.sum()) for _, valid in batches)

    def gradient(pairs: list[tuple[Tensor, Tensor]], means: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        for x, valid in pairs:
            loss = (model(x).squeeze(1).square() * valid).sum()
            (loss / (valid.sum() * len(pairs) if means else total)).backward()
        assert model.weight.grad is not None
        return model.weight.grad
    true = gradient([(whole[0], whole[1])], means=False)
    return 100 * float((gradient(batches, by_means) - true).norm() / true.norm())
