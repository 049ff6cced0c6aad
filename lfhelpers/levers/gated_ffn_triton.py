# mypy: allow-untyped-defs
"""The gated product and its gradient in Triton: every number is read once and written once, in fp32 in between.

A program takes a tile of one row, so width costs nothing but more programs, and counts rows in 64 bits, since rows x
width may pass 2^31. All scalars are whole numbers: a float would reach the kernel as fp32 from Python and as fp64 from
Inductor, at half the speed. What these kernels have over CUDA C++: Inductor sees them, and can fuse around them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

TILE = 1024
"""Columns of a program: with Triton's 4 warps, 16 bytes of bf16 a thread and load."""


@triton.jit
def _product(packed, product, hidden, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    here = column < hidden
    left = packed + row * 2 * hidden + column
    gate = tl.load(left, here, 0.0).to(tl.float32)
    up = tl.load(left + hidden, here, 0.0).to(tl.float32)
    tl.store(product + row * hidden + column, gate * tl.sigmoid(gate) * up, here)


@triton.jit
def _gradient(grad, packed, grad_packed, product, hidden, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    here = column < hidden
    left, at = row * 2 * hidden + column, row * hidden + column
    gate = tl.load(packed + left, here, 0.0).to(tl.float32)
    up = tl.load(packed + left + hidden, here, 0.0).to(tl.float32)
    given = tl.load(grad + at, here, 0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    silu = gate * share
    tl.store(grad_packed + left, given * up * share * (1 + gate * (1 - share)), here)
    tl.store(grad_packed + left + hidden, given * silu, here)
    tl.store(product + at, silu * up, here)  # the forward's result again, for the gradient of the down projection


def product(packed: Tensor) -> Tensor:
    """silu(gate) * up of contiguous [rows, 2 * hidden], gate on the left: [rows, hidden] in the same dtype."""
    rows, hidden = packed.shape[0], packed.shape[1] // 2
    out = torch.empty((rows, hidden), dtype=packed.dtype, device=packed.device)
    if out.numel():
        wrap_triton(_product)[(rows, triton.cdiv(hidden, TILE))](packed, out, hidden, TILE=TILE)
    return out


def gradient(grad: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    """From the product's gradient [rows, hidden], contiguous, to that of `packed`; and the product itself again."""
    rows, hidden = grad.shape
    grad_packed, out = torch.empty_like(packed), torch.empty_like(grad)
    if out.numel():
        wrap_triton(_gradient)[(rows, triton.cdiv(hidden, TILE))](grad, packed, grad_packed, out, hidden, TILE=TILE)
    return grad_packed, out
