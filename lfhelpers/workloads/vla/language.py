"""The language model: a Qwen3-like decoder over image tokens and text.

Image tokens come first, then text of a fixed length. Pad tokens are ordinary tokens and nothing is masked but the
future: a mask tensor would force the attention off the flash kernels, and a varying length would break graphs. The
price is the padding's computation, and that the model must learn to ignore pad tokens (they always stand at the end).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lfhelpers.workloads.vla.sizes import LanguageSize

ROPE_THETA = 1e6
EPS = 1e-6


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, in fp32 or more, returned in x's dtype (Zhang and Sennrich 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, self.weight.to(wide), EPS).to(x.dtype)


class GroupedAttention(nn.Module):
    """Causal grouped-query attention with normalised queries and keys and rotary positions, without biases (Qwen3)."""

    def __init__(self, size: LanguageSize) -> None:
        super().__init__()
        self.head_dim = size.head_dim
        self.query = nn.Linear(size.width, size.heads * size.head_dim, bias=False)
        self.key = nn.Linear(size.width, size.kv_heads * size.head_dim, bias=False)
        self.value = nn.Linear(size.width, size.kv_heads * size.head_dim, bias=False)
        self.query_norm = RMSNorm(size.head_dim)
        self.key_norm = RMSNorm(size.head_dim)
        self.out = nn.Linear(size.heads * size.head_dim, size.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, L, width] to the same; cos and sin as `rotary` gives them."""
        layers = self.query, self.key, self.value
        query, key, value = (layer(x).unflatten(-1, (-1, self.head_dim)) for layer in layers)
        query = rotate(self.query_norm(query).transpose(1, 2), cos, sin)
        key = rotate(self.key_norm(key).transpose(1, 2), cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class GatedFFN(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    fusible = "swiglu"
    """To levers.gated_ffn, which can put a fused one in this one's place."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """Pre-norm decoder layer: attention, then the gated FFN."""

    def __init__(self, size: LanguageSize) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(size.width)
        self.attention = GroupedAttention(size)
        self.ffn_norm = RMSNorm(size.width)
        self.ffn = GatedFFN(size.width, size.ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, L, width] to the same."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """Token embeddings, decoder layers and the final norm; the first `frozen` layers run without autograd."""

    rope: Tensor

    def __init__(self, size: LanguageSize, image_tokens: int, frozen: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.width)
        length = image_tokens + size.tokens + size.answer_tokens
        self.register_buffer("rope", rotary(length, size.head_dim), persistent=False)

    def forward(self, image: Tensor, tokens: Tensor) -> Tensor:
        """Image tokens [B, N, width] and text int64 [B, T] to normalised hidden states [B, N + T, width]."""
        return self.upper(self.lower(image, tokens))

    def lower(self, image: Tensor, tokens: Tensor) -> Tensor:
        """Embeddings and the frozen layers: hidden states [B, N + T, width]."""
        x = torch.cat([image, self.embed(tokens)], dim=1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self._through(self.layers[:self.frozen], x)

    def upper(self, x: Tensor) -> Tensor:
        """Hidden states [B, N + T, width] through the other layers and the final norm."""
        return self.norm(self._through(self.layers[self.frozen:], x))

    def _through(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        cos, sin = self.rope[:, :x.shape[1]].unbind()
        for layer in layers:
            x = layer(x, cos, sin)
        return x


def rotary(length: int, head_dim: int) -> Tensor:
    """cos and sin of every position's angles, both halves alike: float32 [2, length, head_dim] (Su et al. 2021)."""
    frequencies = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys [B, heads, L, head_dim] turned by their position, in x's dtype."""
    left, right = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-right, left], dim=-1) * sin.to(x.dtype)
