"""The loss read in every step: the host waits for the device, and the device then waits for the host."""

from __future__ import annotations

import functools
from typing import Any

from lfhelpers.pitfalls.base import About, trained

ABOUT = About(
    "the GPU has gaps between steps, and the host is never ahead",
    ".item(), isnan(), print of a tensor, each step: the host waits until all that is queued has run",
    "leave values on the device and read them when they are there anyway; lfhelpers writes all of them, and reads none",
    "values of a step that the host waits for")


def break_it() -> float:
    """Host reads in a step of a run with log.loss_item."""
    return float(_probe("true")["host_reads"])


def detect(broken: bool = True) -> str:
    """What the run's profiled step says; empty for none."""
    reads = _probe("true" if broken else "false")["host_reads"]
    return f"the host waits for {reads} values in a step" if reads else ""


def fix_it() -> float:
    """Host reads in a step of the same run without."""
    return float(_probe("false")["host_reads"])


@functools.cache
def _probe(item: str) -> dict[str, Any]:
    with trained("log.probe=true", f"log.loss_item={item}") as run:
        return dict(run.read("probe.json"))
