"""A checkpoint saved from a wrapped model and loaded with strict=False: nothing is loaded, and nothing is said."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lfhelpers.pitfalls.base import About
from lfhelpers.train.checkpoint import bare

ABOUT = About(
    "fine-tuning from a checkpoint starts at the loss of random weights",
    "DDP puts 'module.' before every name and torch.compile '_orig_mod.'; strict=False passes over unknown names",
    "save the bare model, load strictly",
    "tensors of the checkpoint that were not loaded [%]")


class Wrapped(nn.Module):
    """As a wrapper does it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


def break_it() -> float:
    """Percent of tensors that stay as they were."""
    return _missed(wrapped=True)


def detect(broken: bool = True) -> str:
    """What a strict load says; empty where every name is known."""
    try:
        _model().load_state_dict(_saved(wrapped=broken))
    except RuntimeError as error:
        return " ".join(str(error).split())
    return ""


def fix_it() -> float:
    """The same for names of the bare model."""
    return _missed(wrapped=False)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def _saved(wrapped: bool) -> dict[str, Tensor]:
    model = Wrapped(_model()) if wrapped else bare(_model())
    return {name: value + 1 for name, value in model.state_dict().items()}


def _missed(wrapped: bool) -> float:
    fresh, saved = _model(), list(_saved(wrapped).values())
    before = [value.clone() for value in fresh.state_dict().values()]
    fresh.load_state_dict(_saved(wrapped), strict=False)
    unmoved = [torch.equal(now, old) for now, old in zip(fresh.state_dict().values(), before, strict=True)]
    return 100 * sum(unmoved) / len(saved)
