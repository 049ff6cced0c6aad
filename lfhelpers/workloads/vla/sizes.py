"""The three sizes of the reference model: one structure, only the numbers change.

`full` is the published GR00T N1.6 (NVIDIA/Isaac-GR00T, branch n1d6; dimensions of the released checkpoint). `small`
keeps its regime, a heavy frozen tower before hundreds of small kernels, in far less memory; `tiny` trains on a CPU. The
price: matrix products shrink faster than kernel counts, so launch overhead weighs more than in `full`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lfhelpers.errors import LfError, nearest

STATE = 8
"""Numbers in a sample's state: the rest of `ActionSize.state_dim` is zero."""
CHUNK = (16, 7)
"""Supervised steps and dimensions of an action chunk: the rest of [horizon, action_dim] is masked, as published."""


@dataclass(frozen=True)
class VisionSize:
    """The vision tower."""

    layers: int
    width: int
    ffn: int
    heads: int
    pixels: int
    """Side of the square input image."""
    positions: int
    """Side of the grid of learned positions, interpolated to the image's own grid of patches."""
    patch: int = 14
    views: int = 2

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.pixels // self.patch

    @property
    def tokens(self) -> int:
        """Image tokens that the decoder sees, all views together: 2x2 patches make one token."""
        return self.views * (self.grid // 2) ** 2


@dataclass(frozen=True)
class LanguageSize:
    """The decoder."""

    layers: int
    trained: int
    """Top layers trained by default."""
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tokens: int
    """Length of the instruction, padding included."""
    answer_tokens: int
    """Length of the caption and answered questions, which follow where the text loss is on. Ours, not published."""


@dataclass(frozen=True)
class ActionSize:
    """The action head: diffusion transformer and embodiment layers."""

    layers: int
    heads: int
    head_dim: int
    out: int
    """Width of what the transformer hands to the action decoder."""
    embodiments: int
    state_dim: int
    action_dim: int
    hidden: int
    horizon: int
    positions: int
    """Learned positions stored for action tokens; the horizon uses the first of them."""

    @property
    def width(self) -> int:
        """Width of a token."""
        return self.heads * self.head_dim

    @property
    def tokens(self) -> int:
        """One state token and the noised actions."""
        return 1 + self.horizon


@dataclass(frozen=True)
class Size:
    """Every number of one model size."""

    name: str
    vision: VisionSize
    language: LanguageSize
    action: ActionSize
    lr: float
    """Suggested peak learning rate."""


SIZES: dict[str, Size] = {size.name: size for size in (
    Size(
        "full",
        VisionSize(layers=27, width=1152, ffn=4304, heads=16, pixels=252, positions=16),
        LanguageSize(layers=16, trained=4, width=2048, ffn=6144, heads=16, kv_heads=8, head_dim=128,
                     vocabulary=151_680, tokens=37, answer_tokens=128),
        ActionSize(layers=32, heads=32, head_dim=48, out=1024, embodiments=32, state_dim=128, action_dim=128,
                   hidden=1024, horizon=50, positions=1024),
        lr=1e-4,
    ),
    Size(
        "small",
        VisionSize(layers=12, width=512, ffn=2048, heads=8, pixels=224, positions=16),
        LanguageSize(layers=8, trained=2, width=768, ffn=2304, heads=12, kv_heads=6, head_dim=64, vocabulary=16_384,
                     tokens=32, answer_tokens=128),
        ActionSize(layers=16, heads=16, head_dim=48, out=512, embodiments=8, state_dim=32, action_dim=32, hidden=512,
                   horizon=16, positions=256),
        lr=3e-4,
    ),
    Size(
        "tiny",
        VisionSize(layers=2, width=64, ffn=192, heads=4, pixels=56, positions=4),
        LanguageSize(layers=4, trained=1, width=96, ffn=288, heads=4, kv_heads=2, head_dim=24, vocabulary=512,
                     tokens=16, answer_tokens=64),
        ActionSize(layers=4, heads=4, head_dim=24, out=64, embodiments=4, state_dim=16, action_dim=16, hidden=64,
                   horizon=16, positions=64),
        lr=1e-3,
    ),
)}


def find(name: str) -> Size:
    """The size called `name`. Raises LfError with the nearest name where there is none."""
    if name not in SIZES:
        raise LfError(f"recipe field 'workload.size' = '{name}' does not exist; {nearest(name, SIZES)}")
    return SIZES[name]
