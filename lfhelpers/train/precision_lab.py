"""Small experiments on mixed precision, for a notebook: real torch objects, tiny tensors, numbers that can be checked.

They show what is often told wrongly: that clipping may come before unscaling, that a scaler's growth interval saves
checks, that a non-finite loss is something the scaler handles, and that bf16 needs what fp16 needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Clipped(NamedTuple):
    """What clipping saw, and how far the weights moved at learning rate 1."""

    norm: float
    update: float


class Scaled(NamedTuple):
    """One step of a scaler: the scale that its loss had, whether the step was applied, and the scale after it."""

    before: float
    applied: bool
    after: float


class Lost(NamedTuple):
    """Shares of the non-zero values, 0 to 1, that become zero and that become infinite in a dtype."""

    underflow: float
    overflow: float


def clipping(unscale_first: bool, scale: float = 65536.0, max_norm: float = 1.0) -> Clipped:
    """One SGD step of p=zeros(4) on the loss p . [3, 4, 0, 0], whose true gradient norm is 5, under a gradient scaler.

    Clipped while still scaled, the norm is 5 x scale, and after unscaling the update is too small by the scale
    (pytorch/examples issue 1196): the run doesn't fail, it stands still.
    """
    weights = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(weights @ torch.tensor([3.0, 4.0, 0.0, 0.0])).backward()
    if unscale_first:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_([weights], max_norm)
    scaler.step(optimizer)
    scaler.update()
    return Clipped(norm.item(), weights.detach().norm().item())


def scaling(overflows: Sequence[bool], init_scale: float = 65536.0, growth_interval: int = 2000) -> list[Scaled]:
    """What torch's GradScaler does with steps whose gradients overflow or don't.

    Every step is checked, whatever the growth interval; an overflow skips the step and halves the scale; so many good
    steps in a row double it.
    """
    weights = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    steps = []
    for overflow in overflows:
        before, old = scaler.get_scale(), weights.item()
        weights.grad = torch.tensor([torch.inf if overflow else float(before)])  # 1, scaled
        scaler.scale(torch.zeros(()))  # a scaler must have scaled a loss before it may step
        scaler.step(optimizer)
        scaler.update()
        steps.append(Scaled(before, weights.item() != old, scaler.get_scale()))
    return steps


def lost(values: Tensor, mode: str, scale: float = 1.0) -> Lost:
    """What `values`, say a model's gradients, lose in `bf16` or `fp16` when they are multiplied by `scale` before.

    fp16's least number is 6e-8 and its largest 65504; bf16 has fp32's range (1e-38 and 3e38) and fewer digits.
    """
    values = values.detach().float().flatten()
    values = values[values.isfinite() & (values != 0)]
    if not len(values):
        return Lost(0.0, 0.0)
    kept = (values.double() * scale).to(DTYPES[mode])
    return Lost((kept == 0).double().mean().item(), kept.isinf().double().mean().item())
