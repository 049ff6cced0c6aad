"""Weights kept in bf16 alone: an update smaller than half a step of the format changes nothing."""

from __future__ import annotations

import torch
from torch import nn

from lfhelpers.pitfalls.base import About, optimizer_of
from lfhelpers.train.adamw import store_in_bf16

ABOUT = About(
    "at a small learning rate the loss stands still, without an error or a nan",
    "bf16 has 8 bits of precision: w - lr rounds back to w where lr is under w / 256 or so",
    "fp32 weights, or fp32 masters in the optimizer (precision.weights='bf16' keeps them)",
    "weights that ten steps did not move [%]")
RATE, STEPS = 1e-5, 10


def break_it() -> float:
    """Percent of weights that ten steps of AdamW leave as they were, in pure bf16."""
    model = _model().bfloat16()
    before = model.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 64, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    return 100 * float((model.weight == before).float().mean())


def detect(broken: bool = True) -> str:
    """The share of weights that such a rate can't move, by their size; empty where it moves nearly all."""
    model = _model().bfloat16() if broken else _model()
    share = 100 * stuck(model.weight.detach(), RATE)
    return f"a learning rate of {RATE:g} can't move {share:.0f} % of the {model.weight.dtype} weights" \
        if share > 1 else ""


def fix_it() -> float:
    """The same with fp32 masters in lfhelpers' optimizer: percent of masters that did not move."""
    model = _model()
    masters = store_in_bf16(model)
    before = masters[0][1].clone()
    optimizer, _ = optimizer_of(model, "precision.weights=bf16", f"optimizer.lr={RATE}", masters=masters)
    for _ in range(STEPS):
        model(torch.ones(2, 64, dtype=model.weight.dtype)).sum().backward()
        optimizer.update(torch.ones(()))
    return 100 * float((masters[0][1] == before).float().mean())


def stuck(weights: torch.Tensor, rate: float) -> float:
    """Share (0..1) of the weights for which an update of `rate` is below half the distance to the next number."""
    gap = torch.finfo(weights.dtype).eps * 2.0 ** torch.floor(torch.log2(weights.float().abs().clamp(min=1e-30)))
    return float((rate < gap / 2).float().mean())


def _model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(64, 64, bias=False)
