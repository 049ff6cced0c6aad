"""The action head: embodiment layers around AlternateVLDiT, the diffusion transformer that denoises action chunks.

Few tokens (51 in `full`) through many blocks: hundreds of small kernels, bound by launches and not by arithmetic.
Cross- and self-attention blocks are two classes, each always called with the same arguments, for the compiler's sake.
Text and image tokens have fixed places, so a cross-attention block is given its slice and needs no mask; the published
code projects all tokens in each such block and masks the unwanted ones (16 % of the head's FLOPs in `full`).

The embodiment layers exist in two ways with equal results: one copies each sample's weights, as published (10 M numbers
a sample in `full`); the other multiplies by the weights of the embodiments that this run has.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lfhelpers.workloads.vla.sizes import ActionSize
from lfhelpers.workloads.vla.vision import Attention

TIME_CHANNELS = 256


class Used(NamedTuple):
    """Which embodiments there are: in the data (None: look at each sample's id), and among the trained (None: all)."""

    ids: tuple[int, ...] | None
    trained: tuple[int, ...] | None = None



class EmbodimentLinear(nn.Module):
    """A linear layer with weights of its own for each embodiment (CategorySpecificLinear in GR00T).

    With `used.ids`, others get the weights of the first: what is in the data is known when the model is built. Rows
    that aren't `used.trained` are buffers, which no gradient, exchange or update touches; state_dict joins them.
    """

    autocast_weights = True
    """Its products run in autocast's dtype, as those of nn.Linear do (train.adamw asks)."""
    _other_weight: Tensor
    _other_bias: Tensor

    def __init__(self, embodiments: int, inputs: int, outputs: int, used: Used) -> None:
        super().__init__()
        self.used = used.ids
        rows = range(embodiments) if used.trained is None else used.trained
        self.rows = {embodiment: row for row, embodiment in enumerate(rows)}
        self._others = [row for row in range(embodiments) if row not in self.rows]
        weight = torch.randn(embodiments, inputs, outputs) / math.sqrt(inputs)
        self.weight = nn.Parameter(weight[list(self.rows)] if self._others else weight)
        self.bias = nn.Parameter(torch.zeros(len(self.rows), outputs))
        self.register_buffer("_other_weight", weight[self._others], persistent=False)
        self.register_buffer("_other_bias", torch.zeros(len(self._others), outputs), persistent=False)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """[B, L, inputs] and embodiment ids int64 [B] to [B, L, outputs]."""
        if self.used is None:
            return torch.bmm(x, self.weight[ids]) + self.bias[ids].unsqueeze(1)
        out = self._one(x, self.used[0])
        for embodiment in self.used[1:]:
            out = torch.where((ids == embodiment)[:, None, None], self._one(x, embodiment), out)
        return out

    @torch.no_grad()
    def redraw(self, std: float) -> None:
        """New first weights; each embodiment's are the same whatever rows are trained."""
        weight = torch.empty(len(self.rows) + len(self._others), *self.weight.shape[1:]).normal_(0, std)
        self.weight.copy_(weight[list(self.rows)])
        self._other_weight.copy_(weight[self._others])

    def _one(self, x: Tensor, embodiment: int) -> Tensor:
        row = self.rows[embodiment]
        return F.linear(x, self.weight[row].T, self.bias[row])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._others:
            for name in ("weight", "bias"):
                own, others = destination[prefix + name], getattr(self, f"_other_{name}")
                whole = own.new_empty(len(own) + len(others), *own.shape[1:])
                whole[list(self.rows)], whole[self._others] = own.detach(), others.to(own.dtype)
                destination[prefix + name] = whole

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if self._others:
            state_dict = dict(state_dict)
            for name in ("weight", "bias"):
                if (whole := state_dict.get(prefix + name)) is not None:
                    getattr(self, f"_other_{name}").copy_(whole[self._others])
                    state_dict[prefix + name] = whole[list(self.rows)]
        super()._load_from_state_dict(state_dict, prefix, *args)


class EmbodimentMLP(nn.Module):
    """Two embodiment layers with ReLU between: the state encoder and the action decoder."""

    def __init__(self, embodiments: int, inputs: int, hidden: int, outputs: int, used: Used) -> None:
        super().__init__()
        self.first = EmbodimentLinear(embodiments, inputs, hidden, used)
        self.second = EmbodimentLinear(embodiments, hidden, outputs, used)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """[B, L, inputs] to [B, L, outputs]."""
        return self.second(F.relu(self.first(x, ids)), ids)


class ActionEncoder(nn.Module):
    """Noised actions and their time to tokens (MultiEmbodimentActionEncoder in GR00T)."""

    def __init__(self, size: ActionSize, used: Used) -> None:
        super().__init__()
        width = size.width
        self.width = width
        self.first = EmbodimentLinear(size.embodiments, size.action_dim, width, used)
        self.second = EmbodimentLinear(size.embodiments, 2 * width, width, used)
        self.third = EmbodimentLinear(size.embodiments, width, width, used)

    def forward(self, actions: Tensor, step: Tensor, ids: Tensor) -> Tensor:
        """[B, H, action_dim] and discrete times int64 [B] to [B, H, width]."""
        x = self.first(actions, ids)
        time = sinusoid(step, self.width).to(x.dtype).unsqueeze(1).expand(-1, x.shape[1], -1)
        return self.third(F.silu(self.second(torch.cat([x, time], dim=-1), ids)), ids)


class AdaNorm(nn.Module):
    """LayerNorm scaled and shifted by the time embedding; starts as a plain LayerNorm (Peebles and Xie 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5, elementwise_affine=False)
        self.modulation = nn.Linear(width, 2 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[B, L, width] and the time embedding [B, width] to [B, L, width]."""
        scale, shift = self.modulation(F.silu(time)).unsqueeze(1).chunk(2, dim=-1)
        return self.norm(x) * (1 + scale) + shift


class CrossBlock(nn.Module):
    """AdaNorm and cross-attention to the decoder's hidden states, then a plain norm and a GELU-tanh FFN."""

    def __init__(self, size: ActionSize, context_width: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = AdaNorm(size.width)
        self.attention = Attention(size.width, size.heads, context_width)
        self.dropout = _dropout(dropout)
        self.ffn = _ffn(size.width, dropout)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """[B, L, width], time [B, width] and context [B, K, context_width] to [B, L, width]."""
        x = x + self.dropout(self.attention(self.attention_norm(x, time), context))
        return x + self.ffn(x)


class SelfBlock(nn.Module):
    """AdaNorm and self-attention, then a plain norm and a GELU-tanh FFN."""

    def __init__(self, size: ActionSize, dropout: float) -> None:
        super().__init__()
        self.attention_norm = AdaNorm(size.width)
        self.attention = Attention(size.width, size.heads, size.width)
        self.dropout = _dropout(dropout)
        self.ffn = _ffn(size.width, dropout)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[B, L, width] and time [B, width] to [B, L, width]."""
        normed = self.attention_norm(x, time)
        x = x + self.dropout(self.attention(normed, normed))
        return x + self.ffn(x)


class DiT(nn.Module):
    """AlternateVLDiT: blocks 0, 4, ... attend to the text, 2, 6, ... to the image tokens, odd ones to themselves."""

    def __init__(self, size: ActionSize, context_width: int, dropout: float) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(TIME_CHANNELS, size.width), nn.SiLU(), nn.Linear(size.width, size.width))
        self.blocks = nn.ModuleList(SelfBlock(size, dropout) if index % 2 else CrossBlock(size, context_width, dropout)
                                    for index in range(size.layers))
        self.norm = AdaNorm(size.width)
        self.out = nn.Linear(size.width, size.out)

    def forward(self, x: Tensor, step: Tensor, text: Tensor, image: Tensor) -> Tensor:
        """[B, L, width], discrete times int64 [B] and the two parts of the context to [B, L, out]."""
        time = self.time(sinusoid(step, TIME_CHANNELS))
        for index, block in enumerate(self.blocks):
            x = block(x, time) if index % 2 else block(x, time, image if index % 4 else text)
        return self.out(self.norm(x, time))


class ActionHead(nn.Module):
    """State and noised actions, in the light of what the decoder saw and read, to the velocity of the flow."""

    def __init__(self, size: ActionSize, context_width: int, used: Used, dropout: float) -> None:
        super().__init__()
        self.horizon = size.horizon
        self.state_encoder = EmbodimentMLP(size.embodiments, size.state_dim, size.hidden, size.width, used)
        self.action_encoder = ActionEncoder(size, used)
        self.positions = nn.Parameter(0.02 * torch.randn(size.positions, size.width))
        self.dit = DiT(size, context_width, dropout)
        self.action_decoder = EmbodimentMLP(size.embodiments, size.out, size.hidden, size.action_dim, used)
        # A small first prediction: the loss starts at the target's own variance, and no step is spent on getting there.
        self.action_decoder.second.redraw(0.02 / math.sqrt(size.hidden))

    def forward(self, state: Tensor, actions: Tensor, step: Tensor, ids: Tensor, text: Tensor, image: Tensor) -> Tensor:
        """State [B, state_dim], noised actions [B, H, action_dim], times and ids int64 [B] to velocity, as actions."""
        tokens = torch.cat([
            self.state_encoder(state.unsqueeze(1), ids),
            self.action_encoder(actions, step, ids) + self.positions[:self.horizon],
        ], dim=1)
        return self.action_decoder(self.dit(tokens, step, text, image), ids)[:, -self.horizon:]


def sinusoid(step: Tensor, width: int) -> Tensor:
    """cos and sin of times int64 [B] at width/2 frequencies, 1 to 1/10000: float32 [B, width] (Vaswani et al. 2017)."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, device=step.device) * (-math.log(10_000) / (half - 1)))
    angles = step.float().unsqueeze(-1) * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _dropout(share: float) -> nn.Module:
    """Nothing at 0: nn.Dropout(0) would still launch a kernel in training."""
    return nn.Dropout(share) if share else nn.Identity()


def _ffn(width: int, dropout: float) -> nn.Sequential:
    """A norm without weights and the 4x GELU-tanh FFN, dropout after both products, as published."""
    return nn.Sequential(
        nn.LayerNorm(width, eps=1e-5, elementwise_affine=False),
        nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), _dropout(dropout),
        nn.Linear(4 * width, width), _dropout(dropout),
    )
