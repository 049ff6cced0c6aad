"""Small experiments on mixed precision, for a notebook: real torch objects, tiny tensors, numbers that can be checked.

They show what is often told wrongly: that clipping may come before unscaling, that a scaler's growth interval saves
checks, that a non-finite loss is something the scaler handles, that bf16 needs what fp16 needs, and that weights may be
bf16 without anything else that keeps their small updates.
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


def product_error(mode: str, size: int = 256, seed: int = 0) -> float:
    """The error of a product of two random [size, size] matrices whose numbers are read in `mode`, against float64.

    mode: fp32, tf32, bf16 or fp16. Sums are kept in fp32, as matrix units do. The rounding of what is read is imitated,
    so that no GPU is needed. A share of the product's norm.
    """
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    return ((read_in(a, mode) @ read_in(b, mode)).double() - exact).norm().item() / exact.norm().item()


def read_in(values: Tensor, mode: str) -> Tensor:
    """float32 values as a matrix unit reads them in `mode`, float32 again."""
    if mode == "tf32":  # the upper 19 bits, rounded to nearest
        return ((values.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return values.to(DTYPES[mode]).float() if mode in DTYPES else values


def walked(master: bool, steps: int = 100, stride: float = 2.0**-10) -> float:
    """How far a bf16 weight of 1 gets in `steps` updates of `stride`, with an fp32 master or without one.

    The next bf16 number above 1 is 1 + 2^-7: what is less than half of that is rounded away each time.
    """
    weight = torch.ones((), dtype=torch.bfloat16)
    kept = weight.float() if master else weight
    for _ in range(steps):
        kept = kept + stride
        weight = kept.to(torch.bfloat16)
    return weight.item() - 1


def summed_error(mode: str, parts: int, size: int = 10_000, seed: int = 0) -> float:
    """The error of a sum of `parts` random bf16 gradients that is kept in `mode` (fp32 or bf16), against float64."""
    generator = torch.Generator().manual_seed(seed)
    given = [(1 + torch.randn(size, generator=generator)).bfloat16() for _ in range(parts)]
    total = torch.zeros(size, dtype=DTYPES.get(mode, torch.float32))
    for part in given:
        total += part
    exact = torch.stack(given).double().sum(0)
    return ((total.double() - exact).norm() / exact.norm()).item()
