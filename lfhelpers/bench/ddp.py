"""`lfhelpers bench ddp`: what several ranks win, what their exchange costs, and whether the tuner's buckets are best.

Each part is a job of its own, started through the launcher, so that it begins with clean GPUs, and one that fails costs
only itself. Steps run on batches that lie on the device. Rows of a link that was slowed on purpose carry that in their
names, and its sweep stands under `settings["slow_link"]`; none of them is compared with a native row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lfhelpers.bench.ddp_trials import RESULT, STEPS
from lfhelpers.errors import LfError
from lfhelpers.launch import LaunchError, start
from lfhelpers.measure import hardware
from lfhelpers.measure.record import Record, Row
from lfhelpers.recipe import Recipe, recipe

COMMON = ("data.loader=synthetic", "log.skip=5", "steps=1000", "compile.recompile_limit=32")
"""All jobs: no data, and room for the forms that trainers with and without exchange bring."""
UNSHARDED = ("ddp.shard_optimizer=false",)
LOOK = 0.2
"""Seconds between looks at a job."""


@dataclass(frozen=True)
class Part:
    """One job: its name, what its ranks run (ddp_ranks.PARTS), its recipe, and the seconds that it may take."""

    name: str
    runs: str
    job: Recipe
    timeout: float = 330.0
    sweep: float = 150.0
    """Seconds after which no further plan of the exhaustive sweep begins."""


def parts(overrides: Sequence[str] = (), slow_link: str | None = None) -> tuple[Part, ...]:
    """The parts for this machine: on GPUs `full` at 16, `small` at 32 and a slow link; on a CPU the same with `tiny`.

    ddp and in_place are what `full` would cost without sharding, and without gradients in place as well.

    slow_link: as ddp.slow_link, for the last part; none given: TCP alone on GPUs, 0.05 GB/s on a CPU.
    """
    gpu = hardware.device()[0] == "cuda"
    sizes = (("full", 16), ("small", 32), ("small", 32)) if gpu else (("tiny", 4), ("tiny", 4), ("tiny", 4))
    changes = [(f"workload.size={size}", f"batch.micro={micro}", *COMMON, *overrides) for size, micro in sizes]
    link = slow_link or ("nccl:socket" if gpu else "gloo:0.05GB/s")
    return (Part("levers", "levers", recipe("full", *changes[0], name="bench-ddp")),
            Part("ddp", "scaling", recipe("full", *changes[0], *UNSHARDED, "ddp.in_place=false", name="bench-ddp-ddp"),
                 120.0),
            Part("in_place", "scaling", recipe("full", *changes[0], *UNSHARDED, name="bench-ddp-in"), 120.0),
            Part("small", "scaling", recipe("full", *changes[1], name="bench-ddp-small"), 120.0),
            Part("slow_link", "slow", recipe("competent", *changes[2], **{"ddp.slow_link": link},
                                             name="bench-ddp-slow"), 240.0))


def selected(of: Sequence[Part], names: Sequence[str]) -> tuple[Part, ...]:
    """The parts with these names, all for no names. Raises LfError for a name that none has."""
    for name in names:
        if name not in {part.name for part in of}:
            raise LfError(f"--part {name}: there are {', '.join(part.name for part in of)}.")
    return tuple(part for part in of if not names or part.name in names)


def run(which: Sequence[Part] | None = None, ranks: int = 2, blocks: int = 6,
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure the parts on `ranks` ranks; by default all of `parts`.

    keep: is given the record so far after each part, and while one runs whenever it has found something, so that a run
    that is cut short leaves what it has measured.
    """
    chosen = tuple(which) if which is not None else parts()
    settings: dict[str, Any] = {
        "ranks": ranks, "steps_a_block": STEPS, "blocks": blocks, "batches": "random, on the device", "failed": {},
        "exposed_share": "communication that no kernel covers, mean over ranks, over the median step",
        "scaling_efficiency": "the step without exchange over the step with it, each as long as its slowest rank",
        "nccl": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
        "parts": {part.name: part.job.to_toml() for part in chosen}}
    record = Record("ddp", settings, [], {}, 0.0)
    for part in chosen:
        done = record
        for found in _measured(part, ranks, blocks, settings["failed"]):
            record = _with(done, part.name, found)
            keep(record)
    return record


def _measured(part: Part, ranks: int, blocks: int, failed: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What the part has found, each time that it is more; a failure is one sentence under its name."""
    seen: dict[str, Any] = {}
    try:
        job = start(part.job, ranks, module="lfhelpers.bench.ddp_ranks",
                    args=[part.runs, str(blocks), str(part.sweep)])
    except LfError as error:
        failed[part.name] = str(error)
        return
    deadline = time.monotonic() + part.timeout
    while job.poll() == "running":
        if time.monotonic() > deadline:
            job.stop()
            failed[part.name] = f"it did not end within {part.timeout:.0f} s."
        found = job.run.read(RESULT) or {}
        if found != seen:
            for name, value in found.get("checks", {}).items():
                if seen.get("checks", {}).get(name) != value:
                    print(f"{part.name}: {name} {value:.4g}", flush=True)
            seen = found
            yield seen
        time.sleep(LOOK)
    try:
        job.wait()
    except LaunchError as error:
        failed.setdefault(part.name, str(job.run.status["reason"] or error))
    yield job.run.read(RESULT) or {}


def _with(record: Record, part: str, found: dict[str, Any]) -> Record:
    """The record with what a part has found: rows and checks, and all else in the settings."""
    rest = {key: value for key, value in found.items() if key not in ("rows", "checks", "aa_spread")}
    return replace(record, rows=[*record.rows, *(Row(**row) for row in found.get("rows", []))],
                   checks=record.checks | found.get("checks", {}), settings=record.settings | {part: rest},
                   aa_spread=max(record.aa_spread, found.get("aa_spread", 0.0)))
