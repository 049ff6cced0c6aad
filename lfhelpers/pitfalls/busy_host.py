"""Other programs on a rank's core: the rank gets a share of it, and all others wait."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lfhelpers.launch import launch
from lfhelpers.pitfalls.base import About, Small, elsewhere, job
from lfhelpers.recipe import Recipe
from lfhelpers.train.straggler import my_cores
from lfhelpers.workloads.base import Batch

ABOUT = About(
    "throughput falls by a third for minutes, on all ranks, and comes back; nothing in the job has changed",
    "a backup, a monitor or another job computes on a core that a rank is bound to",
    "bind ranks and keep their cores free; lfhelpers names the late rank, and how much of its cores others take",
    "median step of two ranks that compute for 20 ms [ms]")
COMPUTES = 0.02
"""Seconds of its core that a rank needs for a forward."""
HOGS = 3
"""Programs that do nothing but compute."""
HOG = ("import os, sys, time; from lfhelpers.processes import die_with_parent; die_with_parent(int(sys.argv[1]))\n"
       "while not os.path.exists(sys.argv[3]): time.sleep(0.01)\n"
       "os.sched_setaffinity(0, {int(sys.argv[2])})\nwhile True: pass")


class Computing(Small):
    """Small, each rank of which is bound to a core and computes there."""

    def __init__(self, job: Recipe) -> None:
        super().__init__(job)
        if "RANK" in os.environ:
            os.sched_setaffinity(0, {_core(int(os.environ["RANK"]))})

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Small's loss, after some computing."""
        _training(self.job).touch()
        end = time.thread_time() + COMPUTES
        while time.thread_time() < end:
            pass
        return super().loss(model, batch, draws)


def break_it() -> float:
    """Median milliseconds of a step with other programs on the second rank's core."""
    return float(_summary(hogged=True)["step_ms"]["median"])


def detect(broken: bool = True) -> str:
    """What the run's summary says of a late rank; empty where there is none."""
    return str(_summary(hogged=broken).get("late_rank", {}).get("text", ""))


def fix_it() -> float:
    """Median milliseconds of the same step with the core free."""
    return float(_summary(hogged=False)["step_ms"]["median"])


@functools.cache
def _summary(hogged: bool) -> dict[str, Any]:
    """The summary of a run on two ranks, started once a process."""
    with job("steps=24", "batch.micro=4", use=Computing) as chosen, elsewhere(), \
            _hogs(_training(chosen)) if hogged else nullcontext():
        return launch(chosen, 2, watch=False).summary


def _training(job: Recipe) -> Path:
    """A file that is there once the ranks train, beside the job's shards."""
    return Path(str(job.data.path)).with_name("training")


@contextmanager
def _hogs(when: Path) -> Iterator[None]:
    """Programs on the second rank's core; before the file `when` is there they would only make its imports long."""
    command = [sys.executable, "-c", HOG, str(os.getpid()), str(_core(1)), str(when)]
    # A session each: Linux shares a core among sessions first, and all of one would count as one program.
    hogs = [subprocess.Popen(command, start_new_session=True) for _ in range(HOGS)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def _core(rank: int) -> int:
    cores = my_cores()
    return cores[rank % len(cores)]
