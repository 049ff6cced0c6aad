"""One trial: a job of its own, watched from outside, and how it ended.

A trial's job is a process tree under the launcher's supervisor, so that it can't spoil the study: what runs out of
memory, hangs, dies or learns nothing ends alone, leaves no GPU memory behind, and becomes a word and a sentence. The
study decides in this one process, never in the ranks: a rank that asked for its own parameters, or stopped alone, would
leave the others waiting. The price is a start of seconds, and a compilation, for each trial.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lfhelpers.errors import LfError
from lfhelpers.launch import LaunchError, start
from lfhelpers.launch.failures import ending
from lfhelpers.measure import statistics
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run

Ended = Literal["done", "slower", "out of memory", "killed", "hang", "not finite", "crash", "no figure"]
BLOCKS = 8
"""Into so many the timed steps are cut; a trial and the incumbent are compared block by block."""
LOOK = 0.25
"""Seconds between looks at a running job."""
END = 4
"""The last quarter of the steps is what a trial has learnt."""
MOST_SKIPPED = 0.1
"""Share of steps that may be skipped, as fp16 does while its scale settles."""
_MEMORY = re.compile(r"out of memory|OutOfMemory|limit_gib|can't allocate|cannot allocate", re.IGNORECASE)
_KILLED = tuple(ending(code) for code in (-signal.SIGKILL, 128 + signal.SIGKILL))
"""Words of a report; they guess at memory, which is often so and not known: the system says no word when it kills."""
_FINITE = re.compile(r"not finite|no finite|\bnan\b", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """How a trial's job ended, in a word and a sentence; `run` where it has one."""

    ended: Ended
    why: str = ""
    run: Run | None = None


def execute(job: Recipe, nproc: int, limit_s: float, slower: Callable[[Run], bool]) -> Outcome:
    """Run a job to its end, or until it takes more than `limit_s` seconds or `slower` says that it need not go on.

    Whatever interrupts this ends the job first. Only LfError from before the job's start is raised.
    """
    handle = start(job, nproc)
    deadline = time.monotonic() + limit_s
    try:
        while handle.poll() == "running":
            if time.monotonic() > deadline:
                return Outcome("hang", f"not done after {limit_s:.0f} s, the limit of a trial", handle.run)
            if slower(handle.run):  # skipped steps give no samples, so a run that only skips is slow as well
                return spoilt(handle.run) or Outcome("slower", "block by block slower than the best one", handle.run)
            time.sleep(LOOK)
        return judged(handle.wait())
    except LaunchError as error:
        return Outcome(failure(error.report), first_line(error.report), error.run)
    finally:
        if handle.poll() == "running":
            handle.stop()


def failure(report: str) -> Ended:
    """What kind of failure a failed job's report tells of; what became of the other ranks after it is no cause."""
    cause = "\n".join(line for line in report.splitlines() if not line.startswith("After that rank "))
    if any(how in cause for how in _KILLED):
        return "killed"
    return "out of memory" if _MEMORY.search(cause) else "not finite" if _FINITE.search(cause) else "crash"


def judged(run: Run) -> Outcome:
    """A finished job's outcome: a rate of 0, infinite or NaN is no figure, a loss that isn't finite teaches nothing."""
    rate = run.summary.get("samples_per_s")
    if outcome := spoilt(run):
        return outcome
    if not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
        return Outcome("no figure", f"its rate is {rate}, which no job has", run)
    return Outcome("done", "", run)


def spoilt(run: Run) -> Outcome | None:
    """The outcome of a job, done or not, whose steps so far are not finite; None where they are."""
    rows = run.steps()
    skipped = sum(bool(row.get("skipped")) for row in rows)
    if not rows or (skipped <= MOST_SKIPPED * len(rows) and math.isfinite(learnt(rows))):
        return None
    return Outcome("not finite", f"{skipped} of {len(rows)} steps were skipped, the last losses are {learnt(rows):.4g}",
                   run)


def learnt(rows: Sequence[Mapping[str, Any]]) -> float:
    """Mean loss of the last quarter of the steps, the quality proxy; NaN where one of them is not finite."""
    last = [row["loss"] for row in rows[-max(1, len(rows) // END):]]
    return math.nan if any(loss is None for loss in last) else float(np.mean(last))


def losses(run: Run) -> list[float]:
    """The loss of each step; NaN where it was not finite."""
    return [math.nan if row["loss"] is None else float(row["loss"]) for row in run.steps()]


def block_rates(run: Run, untimed: int, steps: int) -> list[float]:
    """samples/s of each block that is complete by now; `steps`: timed ones of the whole run."""
    size = max(1, steps // BLOCKS)
    rows = [row for row in run.steps() if row["step"] > untimed and not row["probe"]][:steps]
    blocks = [rows[start:start + size] for start in range(0, len(rows) - size + 1, size)]
    return [sum(row["samples"] for row in block if not row.get("skipped")) * 1e3
            / max(sum(row["step_ms"] for row in block), 1e-9) for block in blocks]


def figures(run: Run, untimed: int, steps: int) -> dict[str, Any]:
    """What a trial is remembered by: rate with its 95 % interval in samples/s, loss, peak and reserved GiB or None."""
    summary, blocks = run.summary, block_rates(run, untimed, steps)
    rate = float(summary["samples_per_s"])
    low, high = statistics.interval(np.asarray(blocks)) if len(blocks) > 1 else (rate, rate)
    memory = summary.get("memory") or {}
    return {"samples_per_s": rate, "low": min(low, rate), "high": max(high, rate), "blocks": blocks,
            "n": max(1, len(blocks)), "loss": learnt(run.steps()), "run": run.id,
            "peak_gib": memory.get("peak_gib"), "reserved_gib": memory.get("reserved_gib")}


def first_line(report: str) -> str:
    """What a report says, in a line: its last words where it is a traceback."""
    lines = [line.strip() for line in report.splitlines() if line.strip() and not line.startswith(("Logs:", "After "))]
    if not lines:
        raise LfError("a job failed without a word; look into its logs.")
    return lines[0] if len(lines) == 1 or not lines[0].endswith(("failed:", "lines:")) else f"{lines[0]} {lines[-1]}"
