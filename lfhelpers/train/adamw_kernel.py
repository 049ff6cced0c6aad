"""The Triton kernels behind train.adamw: all parameters in one launch, each number read and written once.

Parameters are found through a table of addresses, chunk by chunk, so hundreds of tensors of any size fill the GPU
evenly. The table is read through four loads that depend on each other, which enough programs at once hide.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lfhelpers.recipe import OptimizerFields

COLUMNS = tl.constexpr(5)
"""Of the table of addresses: weight, master, first and second moment, gradient (0: there is none)."""
UPDATED, SUMMED = 1024, 4096
"""Numbers of a chunk in each kernel, with the warps that take it: the fastest of 12 pairs on an H200."""
UPDATING_WARPS, SUMMING_WARPS = 8, 4


@triton.jit
def _place(places, chunk, CHUNK: tl.constexpr):
    """(parameter, offsets of the chunk's numbers in it, how many numbers the parameter has)."""
    owner, start, count = tl.load(places + 3 * chunk), tl.load(places + 3 * chunk + 1), tl.load(places + 3 * chunk + 2)
    return owner, tl.multiple_of(start * CHUNK, CHUNK) + tl.arange(0, CHUNK), count


@triton.jit
def _tensor(row, column: tl.constexpr, kind: tl.constexpr):
    # Every tensor begins at a multiple of 16 bytes: with whole chunks, which need no mask, 16 bytes are loaded at once.
    return tl.multiple_of(tl.load(row + column).to(tl.pointer_type(kind)), 16)


@triton.jit
def _update_chunk(row, at, here, scalars, beta1, beta2, eps, decay, KIND: tl.constexpr, LOW: tl.constexpr):
    factor, rate = tl.load(scalars), tl.load(scalars + 2)
    scaled_rate, root = tl.load(scalars + 3), tl.load(scalars + 4)
    master, first, second = _tensor(row, 1, tl.float32), _tensor(row, 2, tl.float32), _tensor(row, 3, tl.float32)
    g = tl.load(_tensor(row, 4, KIND) + at, here).to(tl.float32) * factor
    m = tl.load(first + at, here)
    v = tl.load(second + at, here)
    m += (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    p = tl.load(master + at, here) * (1 - rate * decay) - scaled_rate * m / (tl.sqrt(v) / root + eps)
    tl.store(first + at, m, here)
    tl.store(second + at, v, here)
    tl.store(master + at, p, here)
    if LOW:
        tl.store(_tensor(row, 0, KIND) + at, p.to(KIND), here)


@triton.jit
def _update(table, places, scalars, beta1, beta2, eps, decay, LOW: tl.constexpr, CHUNK: tl.constexpr):
    kind: tl.constexpr = tl.bfloat16 if LOW else tl.float32
    owner, at, count = _place(places, tl.program_id(0), CHUNK)
    row = table + COLUMNS * owner
    if (tl.load(scalars + 1) > 0) & (tl.load(row + 4) != 0):  # not a bad step, and there is a gradient
        if tl.max(at, 0) < count:
            _update_chunk(row, at, None, scalars, beta1, beta2, eps, decay, kind, LOW)
        else:
            _update_chunk(row, at, at < count, scalars, beta1, beta2, eps, decay, kind, LOW)


@triton.jit
def _squares(table, places, sums, LOW: tl.constexpr, CHUNK: tl.constexpr):
    kind: tl.constexpr = tl.bfloat16 if LOW else tl.float32
    owner, at, count = _place(places, tl.program_id(0), CHUNK)
    row = table + COLUMNS * owner
    total = 0.0
    if tl.load(row + 4) != 0:
        grad = _tensor(row, 4, kind)
        if tl.max(at, 0) < count:
            g = tl.load(grad + at).to(tl.float32)
        else:
            g = tl.load(grad + at, at < count, 0.0).to(tl.float32)
        total = tl.sum(g * g)
    tl.store(sums + tl.program_id(0), total)


def update(table: Tensor, places: Tensor, scalars: Tensor, fields: OptimizerFields, low: bool) -> None:
    """Update every chunk; `table` and `places` are adamw._Table's, `scalars` float32 [5] as MasterAdamW.step has."""
    beta1, beta2 = fields.betas
    _update[(len(places),)](table, places, scalars, beta1, beta2, fields.eps, fields.weight_decay, LOW=low,
                            CHUNK=UPDATED, num_warps=UPDATING_WARPS)


def squares(table: Tensor, places: Tensor, low: bool) -> Tensor:
    """The sum of squares of each chunk's gradients, float32 [chunks]."""
    sums = torch.empty(len(places), device=places.device)
    _squares[(len(places),)](table, places, sums, LOW=low, CHUNK=SUMMED, num_warps=SUMMING_WARPS)
    return sums
