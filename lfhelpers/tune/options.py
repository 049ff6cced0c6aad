"""What a study searches and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass

from lfhelpers.levers.table import Equivalence
from lfhelpers.measure import hardware

SHARE = 0.95
"""Share of a GPU's memory that a trial may reserve where nothing else is said."""


@dataclass(frozen=True)
class Options:
    """What is searched, and what it may cost: `trials` that have a job, `minutes` of jobs over all calls."""

    name: str
    trials: int = 25
    minutes: float | None = None
    nproc: int = 1
    steps: int = 40
    """Timed steps of a trial."""
    limit_s: float = 300.0
    """Seconds after which a trial's job hangs."""
    memory_gib: float | None = None
    """Most GPU memory that a trial may reserve; none given: 95 % of the smallest GPU's."""
    margin: float = 0.02
    """Share by which a trial's loss may be above the base's."""
    allow: Equivalence = "reordered"
    knobs: tuple[str, ...] = ()
    seed: int = 0


def gpu_gib() -> float | None:
    """What a trial may reserve on the smallest GPU of this host, in GiB; None where there is no GPU."""
    gpus = hardware.describe()["hardware"]["gpus"]
    return SHARE * min(gpu["memory_gib"] for gpu in gpus) if gpus else None
