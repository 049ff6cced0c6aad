"""What a ladder is made of: a rung is a recipe with its runs, its verdict, and what stood in its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lfhelpers.diagnose.predictions import Score
from lfhelpers.levers.table import Lever
from lfhelpers.quality.levers import Verdict
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run

START, AFTERNOON, TOP = "as found", "competent", "full"


@dataclass
class Rung:
    """One recipe of the ladder, and what is known of it; `obstacle` says why it has no run, or was refused."""

    name: str
    kind: Literal["anchor", "add", "without"]
    job: Recipe
    lever: Lever | None = None
    obstacle: str | None = None
    verdict: Verdict | None = None
    """Of the lever's gate; not passed also where the job failed, and None where the lever can't be pulled here."""
    runs: list[Run] = field(default_factory=list)
    over: float | None = None
    """How many times the rate of the rung on which the lever was pulled."""
    score: Score | None = None
    """What the trace of that rung had promised, against `over`; None where it knows no ceiling for the lever."""
