"""down(silu(gate) * up) as one operator with a gradient of its own, in three implementations of one name.

`packed` [rows, 2 * hidden] is what one matrix product of x with both first weights gives. The operator keeps nothing
else: silu and the product, which eager keeps and which are as large again, are made anew in backward from what the
gradient has to read anyway; the price is one more write. `kernel` says who computes: `torch` (on a CPU the reference,
under torch.compile what Inductor makes of it), `triton` or `cuda`. The matrix products stay cuBLAS's: a kernel over all
three would have to hold whole rows of `hidden`, over a megabyte for a tile of 128, in 227 KB of shared memory.

Source: GLU Variants Improve Transformer (Shazeer 2020); recomputing as in Liger Kernel (Hsu et al. 2024).
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lfhelpers.levers import gated_ffn_cuda

KERNELS = ("torch", "triton", "cuda")
TRITON = importlib.util.find_spec("triton") is not None
_operator: Any = torch.library.triton_op if TRITON else torch.library.custom_op
if TRITON:
    from lfhelpers.levers import gated_ffn_triton


@_operator("lfhelpers::swiglu_down", mutates_args=())
def swiglu_down(packed: Tensor, weight: Tensor, kernel: str) -> Tensor:
    """(silu(gate) * up) @ weight.T of [rows, 2 * hidden] and [width, hidden]: [rows, width], all of one dtype."""
    return F.linear(_product(packed.contiguous(), kernel), weight)


@_operator("lfhelpers::swiglu_grad", mutates_args=())
def swiglu_grad(grad: Tensor, packed: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """From the gradient of silu(gate) * up, [rows, hidden], to that of `packed`; and the product itself again."""
    return _gradient(grad.contiguous(), packed.contiguous(), kernel)


@swiglu_down.register_fake
def _(packed: Tensor, weight: Tensor, kernel: str) -> Tensor:
    return packed.new_empty(packed.shape[0], weight.shape[0])


@swiglu_grad.register_fake
def _(grad: Tensor, packed: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    return packed.new_empty(packed.shape), grad.new_empty(grad.shape)


def gated(packed: Tensor, weight: Tensor, kernel: str) -> Tensor:
    """`swiglu_down` of any leading dimensions, [..., 2 * hidden] to [..., width], in packed's dtype."""
    out: Tensor = swiglu_down(packed.flatten(0, -2), weight.to(packed.dtype), kernel)
    return out.view(*packed.shape[:-1], out.shape[-1])


def obstacle(kernel: str, device: torch.device) -> str | None:
    """Why a kernel can't be used on a device; None where it can."""
    if kernel == "torch":
        return None
    if device.type != "cuda":
        return "there is no GPU"
    if kernel == "cuda":
        return gated_ffn_cuda.obstacle(device.index or 0)
    if not TRITON:
        return "triton isn't installed"
    return None if torch.cuda.get_device_capability(device) >= (8, 0) else "Triton's bf16 needs compute capability 8.0"


def _product(packed: Tensor, kernel: str) -> Tensor:
    if kernel == "cuda":
        return gated_ffn_cuda.product(packed)
    if kernel == "triton" and packed.dtype != torch.float64:  # those kernels compute in fp32
        return gated_ffn_triton.product(packed)
    gate, up = packed.chunk(2, dim=-1)
    return F.silu(gate) * up


def _gradient(grad: Tensor, packed: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    if kernel == "cuda":
        return gated_ffn_cuda.gradient(grad, packed)
    if kernel == "triton" and packed.dtype != torch.float64:
        return gated_ffn_triton.gradient(grad, packed)
    gate, up = packed.chunk(2, dim=-1)
    silu = F.silu(gate)
    to_gate = torch.ops.aten.silu_backward(grad * up, gate)
    return torch.cat([to_gate, grad * silu], dim=-1), silu * up


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
    packed, weight, ctx.kernel = inputs
    ctx.save_for_backward(packed, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
    packed, weight = ctx.saved_tensors
    to_packed, product = swiglu_grad(grad @ weight, packed, ctx.kernel)
    return to_packed, grad.t() @ product if ctx.needs_input_grad[1] else None, None


swiglu_down.register_autograd(_backward, setup_context=_keep)
