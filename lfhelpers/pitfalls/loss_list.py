"""Losses kept in a list, each with its whole graph: memory grows by a step's activations in every step."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import torch
from torch import nn

from lfhelpers.levers.limit import Budget
from lfhelpers.pitfalls.base import ALONE, About
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train.sentinel import Sentinel

ABOUT = About(
    "memory grows in every step until the run ends out of memory; empty_cache() changes nothing",
    "a list of losses for the plot: each loss holds the graph of its step, and the graph what it saved",
    "append loss.detach(), or write it down and drop it",
    "activations still held after the last step [MiB]")
STEPS = 80


def break_it() -> float:
    """MiB held after 80 steps that keep their losses."""
    return _train(keep_graph=True)[0]


def detect(broken: bool = True) -> str:
    """What the sentinel of every run says of it: growth, and who holds what grows; empty where nothing grows."""
    return _train(keep_graph=broken)[1]


def fix_it() -> float:
    """MiB held after the same steps, with detached losses."""
    return _train(keep_graph=False)[0]


@functools.cache
def _train(keep_graph: bool) -> tuple[float, str]:
    """(MiB held after the last step, what the sentinel says)."""
    model = nn.Linear(512, 1)
    losses = []
    with Budget(model) as budget, tempfile.TemporaryDirectory() as folder:
        sentinel = Sentinel(ALONE, read=lambda: budget.live)
        sentinel.run_start(recipe("competent", "log.skip=0"), Run(Path(folder)), model)
        for step in range(STEPS):
            loss = model(torch.randn(512, 512)).square().sum()
            losses.append(loss if keep_graph else loss.detach())
            del loss
            sentinel.step_end(step)
        summary: dict[str, dict[str, str]] = {}
        sentinel.run_end(summary)
        held = budget.live / 2**20
        losses.clear()
    return held, summary["memory_growth"]["text"]
