"""The vision tower (SigLIP2-like ViT) and the connector to the decoder.

All views pass in one call: one large matrix product instead of one a camera. Query, key and value are separate
products, as published, so that a fusion of them is a lever and not a head start. The published tower's pooling head is
never used by the policy and is left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lfhelpers.workloads.vla.packed import PackedBlock
from lfhelpers.workloads.vla.sizes import VisionSize

CHANNELS = 3


class Attention(nn.Module):
    """Full attention of `x` [B, Q, width] over `context` [B, K, context_width]; give x twice for self-attention."""

    def __init__(self, width: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(context_width, width)
        self.value = nn.Linear(context_width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[B, Q, width]; no mask, so that the flash kernels apply."""
        query, key, value = (layer(source).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer, source in
                             ((self.query, x), (self.key, context), (self.value, context)))
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2))


class VisionBlock(nn.Module):
    """Pre-norm transformer block: full attention, then a GELU-tanh FFN."""

    def __init__(self, size: VisionSize) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width, eps=1e-6)
        self.attention = Attention(size.width, size.heads, size.width)
        self.ffn_norm = nn.LayerNorm(size.width, eps=1e-6)
        self.ffn = nn.Sequential(
            nn.Linear(size.width, size.ffn), nn.GELU(approximate="tanh"), nn.Linear(size.ffn, size.width))
        self.packed: PackedBlock | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[B, patches, width] to the same."""
        if self.packed is not None:
            return self.packed(self, x)
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed)
        return x + self.ffn(self.ffn_norm(x))


class VisionTower(nn.Module):
    """SigLIP2-like ViT: linear patches, learned positions, pre-norm blocks, final LayerNorm."""

    def __init__(self, size: VisionSize) -> None:
        super().__init__()
        self.size = size
        self.patch = nn.Linear(CHANNELS * size.patch**2, size.width)
        self.positions = nn.Parameter(0.02 * torch.randn(size.positions**2, size.width))
        self.blocks = nn.ModuleList(VisionBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, eps=1e-6)
        self._kept: tuple[tuple[int, int], Tensor] | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Images as `patches` takes them, to [B*V, patches, width]."""
        x = self.patch(patches(images, self.size.patch))
        x = x + self._positions().to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def _positions(self) -> Tensor:
        """[patches, width]: the learned grid, resized bilinearly where the image's differs (256 to 324 in `full`).

        Where it isn't trained it is resized once: the kernel is slow, 1 % of a step in `full`.
        """
        if self.size.positions == self.size.grid:
            return self.positions
        if self.positions.requires_grad:
            return self._resized()
        version = self.positions._version, self.positions.data_ptr()
        if self._kept is None or self._kept[0] != version:
            self._kept = version, self._resized()
        return self._kept[1]

    def _resized(self) -> Tensor:
        side, grid = self.size.positions, self.size.grid
        image = self.positions.float().T.unflatten(1, (side, side))[None]
        return F.interpolate(image, size=(grid, grid), mode="bilinear")[0].flatten(1).T


class Connector(nn.Module):
    """2x2 neighbouring patches become one decoder token: pixel unshuffle, LayerNorm, two-layer GELU MLP."""

    def __init__(self, size: VisionSize, width: int) -> None:
        super().__init__()
        self.size = size
        self.norm = nn.LayerNorm(4 * size.width)
        self.mlp = nn.Sequential(nn.Linear(4 * size.width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B*V, patches, width] to [B, image tokens, decoder width], view after view."""
        half = self.size.grid // 2
        x = x.unflatten(1, (half, 2, half, 2)).transpose(2, 3).flatten(3).flatten(1, 2)
        return self.mlp(self.norm(x)).unflatten(0, (-1, self.size.views)).flatten(1, 2)


def patches(images: Tensor, patch: int) -> Tensor:
    """uint8 [B, V, P, P, 3], scaled here to -1..1, or float [B, V, 3, P, P], to float32 [B*V, patches, values]."""
    if images.dtype == torch.uint8:
        images = images.movedim(-1, -3)
    grid = images.shape[-1] // patch
    tiles = images.flatten(0, 1).unflatten(3, (grid, patch)).unflatten(2, (grid, patch))
    rows = tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    return rows.float() / 127.5 - 1 if images.dtype == torch.uint8 else rows.float()
