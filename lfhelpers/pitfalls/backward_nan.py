"""An operator whose forward is finite and whose backward is not: nought times infinity."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lfhelpers.pitfalls import base
from lfhelpers.pitfalls.base import About, Small, trained
from lfhelpers.train.replay import replay

ABOUT = About(
    "the loss is finite in every step, and steps are skipped all the same",
    "the root of a sum of squares that is 0: its slope is infinite, and backward multiplies it by 0",
    "add a little inside the root, not behind it; a replay of the kept batch names the operator and the sample",
    "gradients that are not finite, with one empty sample [%]")
EMPTY = 3
"""Number of the sample whose inputs are all 0."""


class Length(nn.Module):
    """The length of each row; `least` is added to its square."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        """x [B, n]; returns [B, 1]."""
        return (x.square().sum(-1, keepdim=True) + self.least).sqrt()


class Lengths(Small):
    """Small by the length of a projection; one sample is empty."""

    least = 0.0

    def model(self) -> nn.Module:
        """A projection without bias, its length, and a linear layer."""
        return nn.Sequential(nn.Linear(4, 8, bias=False), Length(self.least), nn.Linear(1, 2))

    def sample(self, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """Small's sample."""
        tensors = super().sample(members)
        return tensors | ({"x": torch.zeros(4)} if members == base.members(EMPTY) else {})


class SafeLengths(Lengths):
    """Its cure."""

    least = 1e-12


def break_it() -> float:
    """Percent of gradients, with the root as it is."""
    return _share(0.0)


def detect(broken: bool = True) -> str:
    """What a replay of the bad step's kept batch says; empty where no step is bad."""
    return _replayed(broken)


def fix_it() -> float:
    """The same with a little inside the root."""
    return _share(SafeLengths.least)


def _share(least: float) -> float:
    model = nn.Sequential(nn.Linear(4, 8, bias=False), Length(least), nn.Linear(1, 2))
    loss = model(torch.cat([torch.zeros(1, 4), torch.ones(7, 4)])).square().sum()
    assert torch.isfinite(loss), "forward shows nothing"
    loss.backward()
    grads = torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None])
    return 100 * float((~torch.isfinite(grads)).float().mean())


@functools.cache
def _replayed(broken: bool) -> str:
    with trained(use=Lengths if broken else SafeLengths) as run:
        found = run.read("nonfinite-rank-0.json")
        return str(replay(run, found[0]["step"])) if found else ""
