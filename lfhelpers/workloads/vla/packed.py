"""Frozen vision blocks with weights laid out for the matrix units: the same function in fewer and fuller products.

Query, key and value become one product of three times the width. The FFN's hidden width is padded with zeros to a
multiple of 128 (4,304 to 4,352 in `full`): cuBLAS has no fused bias for the odd width and copies the output once more.
Its GELU runs in the product's epilogue, on fp32 sums, so nothing is rounded in between. This is for parts that are not
trained: the copies know nothing of gradients, and hold their memory beside the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from lfhelpers.workloads.vla.vision import VisionBlock

ALIGNED = 128
"""Columns that one tile of a matrix product covers."""


class PackedBlock(nn.Module):
    """The products of one VisionBlock from buffers of their own; norms are the block's."""

    into: Tensor
    into_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor

    def __init__(self, block: VisionBlock) -> None:
        super().__init__()
        for name, value in _layout(block).items():
            self.register_buffer(name, value, persistent=False)

    def refresh(self, block: VisionBlock) -> None:
        """Follow the block's parameters, which have been loaded anew."""
        for name, value in _layout(block).items():
            getattr(self, name).copy_(value)

    def forward(self, block: VisionBlock, x: Tensor) -> Tensor:
        """What block(x) is, [B, patches, width], without autograd."""
        attention, kind = block.attention, self.into.dtype
        down: Any = block.ffn[2]
        packed = F.linear(block.attention_norm(x).to(kind), self.into, self.into_bias)
        query, key, value = packed.unflatten(-1, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + attention.out(mixed.transpose(1, 2).flatten(2))
        hidden = linear_gelu(block.ffn_norm(x).to(kind).flatten(0, 1), self.up, self.up_bias)
        return x + F.linear(hidden, self.down, down.bias).view_as(x)


def pack(blocks: Iterable[Any]) -> None:
    """Pack frozen blocks, now and whenever their parameters are loaded."""
    for block in blocks:
        block.packed = PackedBlock(block)
        block.register_load_state_dict_post_hook(_refresh)


@torch.library.custom_op("lfhelpers::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu_tanh(x @ weight.T + bias) of [rows, inputs] as one product with an epilogue (on CUDA, by cuBLASLt)."""
    if x.is_cuda:  # there it is the tanh approximation; an operator of its own, since the compiler takes it apart
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _refresh(block: Any, _: object) -> None:
    block.packed.refresh(block)


@torch.no_grad()
def _layout(block: VisionBlock) -> dict[str, Tensor]:
    attention, layers = block.attention, list(block.ffn)
    up: Any = layers[0]
    down: Any = layers[2]
    three = (attention.query, attention.key, attention.value)
    extra = -up.out_features % ALIGNED
    return {
        "into": torch.cat([layer.weight for layer in three]), "into_bias": torch.cat([layer.bias for layer in three]),
        "up": F.pad(up.weight, (0, 0, 0, extra)), "up_bias": F.pad(up.bias, (0, extra)),
        "down": F.pad(down.weight, (0, extra)),
    }
