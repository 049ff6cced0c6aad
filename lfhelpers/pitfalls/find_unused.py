"""find_unused_parameters, copied from one configuration to the next: a walk and a message in each step, for nothing."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from lfhelpers.pitfalls import lone
from lfhelpers.pitfalls.base import About
from lfhelpers.pitfalls.checked import asked
from lfhelpers.recipe import recipe

ABOUT = About(
    "steps on several ranks are a little longer than their exchange and their passes together",
    "each forward ends with a walk through the graph, each backward with a message of which parameters were used",
    "leave it off; freeze what is never used, once and by name (ddp.freeze_unused)",
    "messages in a step of one bucket")
SETTLED = 3
"""Steps after which DDP has built its buckets."""


def break_it() -> float:
    """Messages of a step with the search on."""
    return float(_messages(search=True))


def detect(broken: bool = True) -> str:
    """What `check` says of a recipe with it, on two ranks; empty for one without."""
    job = recipe("competent", f"ddp.find_unused={str(broken).lower()}")
    return "; ".join(item.text for item in asked(job, 2))


def fix_it() -> float:
    """Messages of the same step without."""
    return float(_messages(search=False))


@functools.cache
def _messages(search: bool) -> int:
    return lone.call(_count, search)


def _count(search: bool) -> int:
    """All-reduces of a settled step."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), find_unused_parameters=search)
    for _ in range(SETTLED):
        model(torch.ones(2, 4)).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        model(torch.ones(2, 4)).sum().backward()
    return sum(item.count for item in seen.key_averages() if item.key == "c10d::allreduce_")
