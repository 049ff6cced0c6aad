"""Gradients unscaled at each micro-batch of an accumulation: the second time raises, or worse, is caught."""

from __future__ import annotations

import torch
from torch import nn

from lfhelpers.pitfalls.base import About, optimizer_of

ABOUT = About(
    "accumulation with fp16 and clipping raises 'unscale_() has already been called'; caught, no step is made",
    "unscale_ and clipping stand in the loop over micro-batches, not at its end",
    "unscale once a step, after the last micro-batch",
    "optimizer steps made in eight micro-batches of which four make a step")


def break_it() -> float:
    """Steps of a loop that unscales every micro-batch."""
    return float(_naive()[0])


def detect(broken: bool = True) -> str:
    """The error that ends the loop; empty for lfhelpers' own update."""
    return _naive()[1] if broken or fix_it() != 2 else ""


def fix_it() -> float:
    """Steps of lfhelpers' optimizer."""
    model = nn.Linear(4, 1)
    optimizer, scaler = optimizer_of(model, mode="fp16")
    for number in range(8):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        if number % 4 == 3:
            optimizer.update(torch.ones(()))
    return float(optimizer.applied)


def _naive() -> tuple[int, str]:
    model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made, said = 0, ""
    for number in range(8):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        try:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        except RuntimeError as error:
            said = said or str(error)
            continue
        if number % 4 == 3:
            scaler.step(optimizer)
            scaler.update()
            made += 1
    return made, said
