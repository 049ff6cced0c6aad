"""One gradient that is not a number, and clipping: the norm is nan, so all gradients are, so all weights are."""

from __future__ import annotations

import torch
from torch import nn

from lfhelpers.pitfalls.base import About, optimizer_of

ABOUT = About(
    "from one step on everything is nan, and the checkpoint too",
    "clip_grad_norm_ multiplies every gradient by limit / norm, and the norm of one nan is nan",
    "look at the norm before the update and skip the step, on all ranks alike; count what was skipped",
    "weights that are nan after the step [%]")


def break_it() -> float:
    """Percent of weights, after clipping and a step."""
    model = _model()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return _share(model)


def detect(broken: bool = True) -> str:
    """What the optimizer says of the step: skipped, or nothing."""
    model = _model(bad=broken)
    norm, skipped, _ = optimizer_of(model)[0].update(torch.ones(()))
    return f"the step is skipped: the gradient norm is {float(norm)}" if skipped else ""


def fix_it() -> float:
    """The same with lfhelpers' optimizer, which skips it on the device."""
    model = _model()
    optimizer_of(model)[0].update(torch.ones(()))
    return _share(model)


def _model(bad: bool = True) -> nn.Linear:
    model = nn.Linear(8, 8)
    model(torch.ones(2, 8)).sum().backward()
    if bad:
        assert model.weight.grad is not None
        model.weight.grad[0, 0] = torch.nan
    return model


def _share(model: nn.Linear) -> float:
    return 100 * float(torch.cat([value.isnan().flatten() for value in model.parameters()]).float().mean())
