"""What a run says of a link that is slower than the machine's: measured before the first step, kept in the summary."""

from __future__ import annotations

from typing import Any

from torch import nn

from lfhelpers.levers import slow_link
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import Ranks


class Slowed(Hook):
    """Measures a slowed link (levers.slow_link) and writes it into the summary as `link`; a native one costs none."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._told: dict[str, Any] = {}

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Measure, and say so in rank 0's log; every rank takes part."""
        if self._ranks.world > 1:
            self._told = slow_link.measure(job.ddp.slow_link, self._ranks.device)
        if self._told and self._ranks.first:
            print(slow_link.header({"link": self._told}), flush=True)

    def run_end(self, summary: dict[str, Any]) -> None:
        """Add what was measured."""
        if self._told:
            summary["link"] = self._told
