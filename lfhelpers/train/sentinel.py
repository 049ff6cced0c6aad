"""Watches the memory of every run: says when it keeps growing, how fast, who holds what grows, and what makes it grow.

A leak of a megabyte a step is found after hours by the error that ends the run, far from its cause. Here each rank
reads what it holds after a step: on a GPU what the allocator has handed out, on a CPU the process's own resident pages.
That costs some 20 microseconds and waits for nothing. Where the curve keeps rising (measure.growth), the tensors are
counted twice, WATCHED steps apart, and the kind that became more is named with its holder (measure.census); on a GPU
also the line of code whose blocks became more, from the allocator's own history of these steps. Only the first leak of
a run is looked into. `empty_cache` cures none: it hands back what nobody holds.

Three things that also take memory, and time, with every step are watched beside it: functions that are compiled again,
batches whose shapes never come back, so that each plan and each graph is made for one batch alone, and a profiler that
nobody has switched off. Whatever is found lies in the run's folder from that step on, a file for each rank: a run that
is killed, or ends out of memory, has no summary, and is the one that is asked about.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lfhelpers.levers import compile as compile_lever
from lfhelpers.levers.compile import Compilation
from lfhelpers.levers.compile_health import UNKNOWN
from lfhelpers.measure import census
from lfhelpers.measure.growth import LEAST_SAMPLES, Growth, growth, rises
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch

KEPT = 240
"""Samples that are kept; when there are more, every second one goes and half as many are taken."""
WATCHED = 8
LEAST = {"cuda": 2**20, "cpu": 2**25}
"""Bytes gained below which nothing is said: a CPU's pages are counted coarsely, and other threads' are among them."""
HISTORY = 200_000
FIRST_SHAPES, LAST_SHAPES, NEW_SHAPES = 64, 1024, 0.25
"""Micro-batches after which shapes are judged first, and last, and the share of new ones that is named."""
CURE = "keep numbers, not tensors (loss.detach(), .item()), and drop what nobody reads; empty_cache() does not help"
PROFILED_STEPS = 32
"""Steps in a row under torch's profiler after which it was left on; a recipe's own traces take a few."""


class Sentinel(Hook):
    """Adds `memory_growth` to the summary, and prints one line where a leak is seen; each rank watches itself.

    Findings of rank N are in memory-growth-rank-N.json, recompiled-rank-N.json, shapes-rank-N.json and
    profiler-rank-N.json.
    """

    def __init__(self, ranks: Ranks, read: Callable[[], int] | None = None,
                 compilation: Compilation | None = None) -> None:
        """read: bytes held now; by default as the module says. compilation: the run's, which knows what it compiled."""
        self._ranks = ranks
        self._read = read or reader(ranks.device)
        self._steps: list[int] = []
        self._held: list[int] = []
        self._stride, self._seen, self._next_look = 1, 0, 2 * LEAST_SAMPLES
        self._untimed = 0
        self._before: tuple[int, census.Census] | None = None
        self._leak: Growth | None = None
        self._owner = ""
        self._shapes = Shapes()
        self._profiled = 0
        self._compilation, self._graphs = compilation, 0

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Take the length of the warm-up and the run's folder, and forget what the process has freed before."""
        self._untimed = job.untimed(self._ranks.device.type)
        self._run, self._job = run, job
        self._graphs = compile_lever.graphs(job)
        if self._ranks.device.type == "cpu":
            trim()

    def batch_ready(self, step: int, batch: Batch, draws: Batch) -> None:
        """Remember the micro-batch's shapes."""
        if text := self._shapes.see(batch):
            self._leave("shapes", {"step": step + 1, "text": text})

    def step_end(self, step: int) -> None:
        """Take a sample; now and then look at the curve; some steps after a leak was seen, name who holds it."""
        self._seen += 1
        self._recompiled()
        self._profiled = self._profiled + 1 if torch.autograd._profiler_enabled() else 0
        if self._profiled == PROFILED_STEPS:
            self._leave("profiler", {"step": step + 1, "text": f"torch's profiler has been on for {PROFILED_STEPS} "
                                     "steps and keeps what it saw in each; give it a schedule, or stop it"})
        if self._seen <= self._untimed:
            return
        if self._before is not None and step >= self._before[0] + WATCHED:
            self._name()
        if self._seen % self._stride == 0:
            self._steps.append(step)
            self._held.append(self._read())
            if len(self._steps) > KEPT:
                self._steps, self._held, self._stride = self._steps[::2], self._held[::2], 2 * self._stride
        if self._seen - self._untimed >= self._next_look and self._leak is None:
            self._next_look *= 2
            self._look(step)

    def run_end(self, summary: dict[str, Any]) -> None:
        """Say what came of it."""
        self._recompiled()
        found = growth(self._steps, self._held)
        if found is None:
            return
        leaks = self._leaks(found)
        if self._leak is not None and not leaks:  # looking for its owner has freed what was garbage: a drop in the line
            found, leaks = self._leak, True
        text = self._text(found) if leaks else ""
        if leaks and self._leak is None:
            print(text, flush=True)
        if leaks:
            self._leave("memory-growth", {"step": self._steps[-1] + 1, "text": text})
        summary["memory_growth"] = {"bytes_a_step": found.slope, "low": found.low, "high": found.high,
                                    "gained": found.gained, "leaks": leaks, "owner": self._owner, "text": text}

    def _look(self, step: int) -> None:
        found = growth(self._steps, self._held) if rises(self._held) else None
        if found is None or not self._leaks(found):
            return
        self._leak = found
        self._leave("memory-growth", {"step": step + 1, "text": self._text(found)})  # memory may end before the owner
        self._before = step, census.census()
        if self._ranks.device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=HISTORY, stacks="python")

    def _leaks(self, found: Growth) -> bool:
        """Whether it leaks, by its slope too: a library that loads late is a gain, as scipy is at the first look."""
        least = LEAST[self._ranks.device.type]
        return found.leaks(least) and found.slope * (self._steps[-1] - self._steps[0]) >= least

    def _name(self) -> None:
        assert self._before is not None and self._leak is not None
        rows = census.grown(self._before[1], WATCHED // 2)
        self._owner = str(rows[0]) if rows else ""
        if self._ranks.device.type == "cuda":
            line = by_stack(torch.cuda.memory._snapshot(self._ranks.device), WATCHED // 2)
            torch.cuda.memory._record_memory_history(enabled=None)
            self._owner += f"{'; ' if self._owner and line else ''}{line}"
        step = self._before[0]
        self._before = None
        self._leave("memory-growth", {"step": step + 1, "text": self._text(self._leak)})
        print(self._text(self._leak), flush=True)

    def _recompiled(self) -> None:
        """Leave the recompilations so far, whenever there is a new graph."""
        if self._compilation is None or (graphs := compile_lever.graphs(self._job)) == self._graphs:
            return
        self._graphs = graphs
        again = self._compilation.report()["recompilations"]
        if again and again != UNKNOWN:
            self._leave("recompiled", again)

    def _leave(self, what: str, content: Any) -> None:
        self._run.write(f"{what}-rank-{self._ranks.rank}.json", content)

    def _text(self, found: Growth) -> str:
        who = f": {self._owner}" if self._owner else ""
        return f"rank {self._ranks.rank} holds more memory from step to step, {found}{who}; {CURE}."


class Shapes:
    """Remembers which shapes micro-batches had, and tells whether new ones keep coming. It costs microseconds."""

    def __init__(self) -> None:
        self._known: set[tuple[tuple[int, ...], ...]] = set()
        self._seen, self._new, self._judged = 0, 0, FIRST_SHAPES

    def see(self, batch: Batch) -> str:
        """Note a micro-batch; a sentence where many of the last half had shapes that none had before, else empty."""
        if self._seen >= LAST_SHAPES:
            return ""
        shapes = tuple(tuple(value.shape) for value in batch.values())
        self._seen += 1
        self._new += shapes not in self._known and self._seen > self._judged // 2
        self._known.add(shapes)
        if self._seen < self._judged:
            return ""
        half, new, self._judged, self._new = self._judged // 2, self._new, 2 * self._judged, 0
        if new < NEW_SHAPES * half:
            return ""
        return (f"{new} of {half} micro-batches have shapes that none had before, {len(self._known)} in all: each is "
                "planned or compiled for once and never used again; pad to a few lengths")


def reader(device: torch.device) -> Callable[[], int]:
    """A function that tells the bytes held now: by the GPU's allocator, or in the process's own resident pages."""
    if device.type == "cuda":
        return lambda: int(torch.cuda.memory.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["current"])
    page = os.sysconf("SC_PAGE_SIZE")

    def pages() -> int:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
        return (resident - shared) * page
    return pages


def trim() -> None:
    """Hand malloc's free pages back to the system, where its library can.

    What an earlier run of the process has freed is taken again without a new page, so a leak into it would not be seen.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc's
        library.malloc_trim(0)


def by_stack(snapshot: dict[str, Any], least: int) -> str:
    """The line of Python outside torch that made most bytes still in use, among those of `least` blocks or more.

    snapshot: torch.cuda.memory._snapshot()'s. Blocks from before the history began have no stack and don't count.
    """
    blocks: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            frames = [frame for frame in block.get("frames", ()) if "/torch/" not in frame["filename"]]
            if block["state"] == "active_allocated" and frames:
                place = f"{frames[0]['filename'].rpartition('/')[2]}:{frames[0]['line']} ({frames[0]['name']})"
                blocks[place] += 1
                sizes[place] += block["size"]
    kept = {place: size for place, size in sizes.items() if blocks[place] >= least}
    if not kept:
        return ""
    most = max(kept, key=lambda place: kept[place])
    return f"{blocks[most]} blocks, {kept[most] / 2**20:.3g} MiB, made at {most}"
