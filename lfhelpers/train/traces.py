"""A profiler trace of a few steps of a run, for `lfhelpers diagnose`: a file a rank, in the run's folder.

Three steps after one of warm-up, without Python stacks and memory events: enough to divide a step's time, and a few
megabytes. They are the run's last steps but for the probed one, so that whatever a profiler leaves attached slows none
that is timed; all of them are left out of the statistics.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from lfhelpers.measure import chrome_trace
from lfhelpers.recipe import PROFILED, Recipe
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import Ranks

WARMUP = 1
ACTIVE = PROFILED - WARMUP
LARGEST_MB = 100.0
"""Of a rank's file; a larger one is kept, and said."""


def profiled_steps(job: Recipe) -> range:
    """The steps (0-based) that run under the profiler, warm-up included; empty where the recipe asks for none."""
    end = job.steps - job.log.probe
    return range(end - PROFILED, end) if job.log.profile else range(0)


class Traces(Hook):
    """Records profiled_steps into traces/rank-N.json.gz; a run resumed within them records nothing."""

    def __init__(self, job: Recipe, ranks: Ranks) -> None:
        self._steps = profiled_steps(job)
        self._ranks = ranks
        self._profile: Any = None
        self._written_mb: float | None = None

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Know where to write."""
        self._path = run.path / "traces" / f"rank-{self._ranks.rank}.json.gz"

    def step_end(self, step: int) -> None:
        """Start behind the step before the warm-up, go on behind each profiled step, and write behind the last."""
        if step == self._steps.start - 1:
            cuda = [ProfilerActivity.CUDA] if self._ranks.device.type == "cuda" else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True,
                                    schedule=schedule(wait=0, warmup=WARMUP, active=ACTIVE, repeat=1),
                                    on_trace_ready=self._write)
            self._profile.start()
        elif self._profile is not None and step in self._steps:
            self._profile.step()
            if step == self._steps[-1]:
                self._profile.stop()
                self._profile = None
                self._ranks.barrier()  # a rank that writes longer must not look late in the step to come

    def run_end(self, summary: dict[str, Any]) -> None:
        """Say in the summary what was recorded."""
        if self._written_mb is not None:
            summary["traces"] = {"steps": [step + 1 for step in self._steps[WARMUP:]], "mb": round(self._written_mb, 2)}

    def _write(self, recorded: Any) -> None:
        self._written_mb = chrome_trace.write(recorded, self._path)
        if self._written_mb > LARGEST_MB:
            print(f"the trace of rank {self._ranks.rank} has {self._written_mb:.0f} MB: its steps hold very many "
                  "operators", flush=True)
