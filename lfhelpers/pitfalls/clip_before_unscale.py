"""Gradients clipped while they still carry the loss scale: every update is 65,536 times too small."""

from __future__ import annotations

import torch
from torch import nn

from lfhelpers.pitfalls.base import About, optimizer_of

ABOUT = About(
    "with fp16 the loss hardly falls, and the gradient norm in the log is in the hundred thousands",
    "clip_grad_norm_ comes before scaler.unscale_ and cuts the scaled gradients to the limit (published so)",
    "unscale, clip, step, update, in this order and in one place; with bf16 no scaler at all",
    "gradient norm that is reported, where the true one is 5")
TRUE = 5.0


class Four(nn.Module):
    """Four numbers whose gradient is (3, 4, 0, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(4))

    def forward(self) -> torch.Tensor:
        """The loss."""
        return (self.numbers * torch.tensor([3.0, 4.0, 0.0, 0.0])).sum()


def break_it() -> float:
    """The norm that clip_grad_norm_ reports of scaled gradients."""
    model, scaler = Four(), torch.amp.GradScaler("cpu", init_scale=65536.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler.scale(model()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    return float(norm)


def detect(broken: bool = True) -> str:
    """What a norm says when it is held against the gradients of the unscaled loss."""
    model = Four()
    gradient, = torch.autograd.grad(model(), [model.numbers])
    factor = (break_it() if broken else fix_it()) / float(gradient.norm())
    return f"the clipped norm is {factor:.0f} times the gradients' own: they still carry the loss scale" \
        if factor > 1.01 else ""


def fix_it() -> float:
    """The norm that lfhelpers' optimizer reports, with the same scaler."""
    model = Four()
    optimizer, scaler = optimizer_of(model, mode="fp16")
    scaler.scale(model()).backward()
    return float(optimizer.update(torch.ones(()))[0])
