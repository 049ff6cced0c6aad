"""Watches the memory of every run: says when it keeps growing, how fast, and who holds what grows.

A leak of a megabyte a step is found after hours by the error that ends the run, far from its cause. Here each rank
reads what it holds after a step: on a GPU what the allocator has handed out, on a CPU the process's own resident pages.
That costs some 20 microseconds and waits for nothing. Where the curve keeps rising (measure.growth), the tensors are
counted twice, WATCHED steps apart, and the kind that became more is named with its holder (measure.census); on a GPU
also the line of code whose blocks became more, from the allocator's own history of these steps. Only the first leak of
a run is looked into. `empty_cache` cures none: it hands back what nobody holds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lfhelpers.measure import census
from lfhelpers.measure.growth import LEAST_SAMPLES, Growth, growth
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import Ranks

KEPT = 240
"""Samples that are kept; when there are more, every second one goes and half as many are taken."""
WATCHED = 8
LEAST = {"cuda": 2**20, "cpu": 2**25}
"""Bytes gained below which nothing is said: a CPU's pages are counted coarsely, and other threads' are among them."""
HISTORY = 200_000
CURE = "keep numbers, not tensors (loss.detach(), .item()), and drop what nobody reads; empty_cache() does not help"


class Sentinel(Hook):
    """Adds `memory_growth` to the summary, and prints one line where a leak is seen; each rank watches itself."""

    def __init__(self, ranks: Ranks, read: Callable[[], int] | None = None) -> None:
        """read: bytes held now; by default as the module says."""
        self._ranks = ranks
        self._read = read or reader(ranks.device)
        self._steps: list[int] = []
        self._held: list[int] = []
        self._stride, self._seen, self._next_look = 1, 0, 2 * LEAST_SAMPLES
        self._untimed = 0
        self._before: tuple[int, census.Census] | None = None
        self._leak: Growth | None = None
        self._owner = ""

    def run_start(self, job: Recipe, run: Run, model: nn.Module) -> None:
        """Take the length of the warm-up."""
        self._untimed = job.untimed(self._ranks.device.type)

    def step_end(self, step: int) -> None:
        """Take a sample; now and then look at the curve; some steps after a leak was seen, name who holds it."""
        self._seen += 1
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
        found = growth(self._steps, self._held)
        if found is None:
            return
        leaks = found.leaks(LEAST[self._ranks.device.type])
        if self._leak is not None and not leaks:  # looking for its owner has freed what was garbage: a drop in the line
            found, leaks = self._leak, True
        text = self._text(found) if leaks else ""
        if leaks and self._leak is None:
            print(text, flush=True)
        summary["memory_growth"] = {"bytes_a_step": found.slope, "low": found.low, "high": found.high,
                                    "gained": found.gained, "leaks": leaks, "owner": self._owner, "text": text}

    def _look(self, step: int) -> None:
        found = growth(self._steps, self._held)
        if found is None or not found.leaks(LEAST[self._ranks.device.type]):
            return
        self._leak = found
        self._before = step, census.census()
        if self._ranks.device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=HISTORY, stacks="python")

    def _name(self) -> None:
        assert self._before is not None and self._leak is not None
        rows = census.grown(self._before[1], WATCHED // 2)
        self._owner = str(rows[0]) if rows else ""
        if self._ranks.device.type == "cuda":
            line = by_stack(torch.cuda.memory._snapshot(self._ranks.device), WATCHED // 2)
            torch.cuda.memory._record_memory_history(enabled=None)
            self._owner += f"{'; ' if self._owner and line else ''}{line}"
        self._before = None
        print(self._text(self._leak), flush=True)

    def _text(self, found: Growth) -> str:
        who = f": {self._owner}" if self._owner else ""
        return f"rank {self._ranks.rank} holds more memory from step to step, {found}{who}; {CURE}."


def reader(device: torch.device) -> Callable[[], int]:
    """A function that tells the bytes held now: by the GPU's allocator, or in the process's own resident pages."""
    if device.type == "cuda":
        return lambda: int(torch.cuda.memory.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["current"])
    page = os.sysconf("SC_PAGE_SIZE")

    def pages() -> int:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
        return (resident - shared) * page
    return pages


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
