"""A loss that is never finite: the scaler skips every step, halves its scale to zero, and nothing stops."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lfhelpers.errors import LfError
from lfhelpers.pitfalls.base import About, Small, trained
from lfhelpers.workloads.base import Batch

ABOUT = About(
    "the run is as fast as ever, the loss is nan, and the weights at the end are those of the beginning",
    "a step without finite gradients is skipped, by design, and nobody counts how many in a row",
    "count skipped steps, name the cause of the first, end the run after a few",
    "steps spent before the run ends, of 200")
STEPS, ALLOWED = 200, 4


class NanLoss(Small):
    """Small, whose loss divides nothing by nothing."""

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Not a number."""
        loss, weight = super().loss(model, batch, draws)
        return loss * (loss.detach() - loss.detach()) / 0.0, weight


def break_it() -> float:
    """Steps that a plain loop makes on such a loss; its scale ends at 0."""
    model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum() * torch.nan).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 0.0, "the scale has collapsed"
    return float(STEPS)


def detect(broken: bool = True) -> str:
    """The sentence with which the guard ends the run; empty for a run that ends by itself."""
    return _ended(broken)


def fix_it() -> float:
    """Steps until the guard ends the same run."""
    return float(_ended(True).partition(" to ")[2].split()[0])


@functools.cache
def _ended(nan: bool) -> str:
    """The sentence that ended a run; empty for none."""
    try:
        with trained(f"optimizer.max_skips={ALLOWED}", use=NanLoss if nan else Small):
            return ""
    except LfError as error:
        return str(error)
