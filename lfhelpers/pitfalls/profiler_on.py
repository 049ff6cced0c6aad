"""A profiler that nobody switched off: it slows every step, and keeps every operator of all of them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from lfhelpers.pitfalls.base import ALONE, About
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train.sentinel import Sentinel

ABOUT = About(
    "steps are slower than in the benchmark, and the host's memory grows from step to step",
    "a profiler around the whole loop, left from a search: it writes down each operator, and keeps all of them",
    "a schedule of a few steps (log.profile takes three), in a run made for it",
    "events that the profiler holds after 48 steps")
STEPS = 48


def break_it() -> float:
    """Events of a profiler around all steps."""
    return float(_profiled(left_on=True)[0])


def detect(broken: bool = True) -> str:
    """What the sentinel of every run says; empty where only a few steps are profiled."""
    return _profiled(left_on=broken)[1]


def fix_it() -> float:
    """Events of one with a schedule."""
    return float(_profiled(left_on=False)[0])


@functools.cache
def _profiled(left_on: bool) -> tuple[int, str]:
    """(events held, what the sentinel has left in the run's folder)."""
    model = nn.Linear(8, 1)
    few = None if left_on else schedule(wait=STEPS - 4, warmup=1, active=3, repeat=1)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        sentinel = Sentinel(ALONE)
        sentinel.run_start(recipe("competent", "log.skip=0"), run, model)
        with profile(activities=[ProfilerActivity.CPU], schedule=few) as seen:
            for step in range(STEPS):
                model(torch.ones(4, 8)).sum().backward()
                sentinel.step_end(step)
                seen.step()
        found = run.read("profiler-rank-0.json")
    return len(seen.events() or ()), found["text"] if found else ""
