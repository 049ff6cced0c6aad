"""Rank 0's record of a run: lines of steps.jsonl as the clock hands them out, and the timed rows for the summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lfhelpers.measure.clock import StepClock
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook, call
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.step import VALUES


class Recorder:
    """Turns the clock's finished steps into rows, writes them (rank 0), and keeps them."""

    def __init__(self, run: Run, ranks: Ranks, clock: StepClock, hooks: Sequence[Hook]) -> None:
        self._run = run
        self._ranks = ranks
        self._clock = clock
        self._hooks = hooks
        self._began = time.perf_counter()
        self.rows: list[dict[str, Any]] = []

    def collect(self, wait: bool = False) -> None:
        """Take the steps that the device has finished; with `wait`, all of them."""
        rows = [self._row(raw) for raw in self._clock.ready(wait)]
        self.rows += rows
        if rows and self._ranks.first:
            self._run.append_steps(rows)
        for row in rows:
            call(self._hooks, Hook.step, row)

    def _row(self, raw: dict[str, Any]) -> dict[str, Any]:
        values = dict(zip(VALUES, raw["values"], strict=True))
        return {
            "step": raw["step"], "epoch": raw["epoch"], "time": raw["at"] - self._began, "loss": values["loss"],
            "lr": values["lr"], "grad_norm": values["grad_norm"], "skipped": values["skipped"] > 0,
            "samples": raw["samples"], "step_ms": raw["step_ms"], "ms": raw["ms"], "host_ms": raw["host_ms"],
            "probe": raw["probe"], "graphs": raw["graphs"], "exposed_ms": raw["exposed"],
        }
