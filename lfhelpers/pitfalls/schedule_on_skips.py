"""A schedule that counts skipped steps: the learning rate falls before the weights have learnt."""

from __future__ import annotations

import torch
from torch import nn

from lfhelpers.pitfalls.base import About, optimizer_of

ABOUT = About(
    "'lr_scheduler.step() before optimizer.step()', or no warning at all and a run that ends worse",
    "the scheduler steps in every iteration, also where the scaler skipped the update",
    "the schedule counts applied steps alone",
    "schedule steps without an update, of 20")


def break_it() -> float:
    """Schedule steps less updates, in a loop whose every second step is skipped."""
    model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    applied = 0
    for number in range(20):
        optimizer.zero_grad()
        before = model.weight.detach().clone()
        scaler.scale(model(torch.ones(2, 4)).sum() * (torch.nan if number % 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        applied += not torch.equal(before, model.weight)
    return float(scheduler.last_epoch - applied)


def detect(broken: bool = True) -> str:
    """What the counts say; empty where they agree."""
    ahead = break_it() if broken else fix_it()
    return f"the schedule is {ahead:.0f} steps ahead of the updates" if ahead else ""


def fix_it() -> float:
    """The same with lfhelpers' optimizer: steps of its schedule, less updates."""
    model = nn.Linear(4, 1)
    optimizer, _ = optimizer_of(model, "optimizer.schedule=cosine", "steps=20")
    updates = 0
    for number in range(20):
        before = model.weight.detach().clone()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.update(torch.tensor(torch.nan if number % 2 else 1.0))
        updates += not torch.equal(before, model.weight)
    return float(optimizer.applied) - updates
