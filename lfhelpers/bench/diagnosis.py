"""`lfhelpers bench diagnosis`: faults planted in the reference workload; is each found, and is its worth told rightly?

Each fault is ablated and traced, and a prediction is made from that alone. Then the faulty recipe and the same without
the fault are timed in blocks that take turns: what removing the fault truly wins. A fault counts as found where its
cause has the highest realistic ceiling of all. Faults of one rank share a job, so that torch is imported once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from lfhelpers.errors import LfError
from lfhelpers.launch import LaunchError, start
from lfhelpers.launch.prepare import prepare
from lfhelpers.measure import hardware
from lfhelpers.measure.record import Record, Row
from lfhelpers.recipe import Recipe, recipe

RESULT = "faults.json"
LOOK = 0.2
"""Seconds between looks at a job."""
PLANTED = "workload.use=lfhelpers.diagnose.planted:"


@dataclass(frozen=True)
class Fault:
    """What is planted: the recipe with it and without, the cause that must rank first, and which end is expected.

    end: `ideal` where the fault's removal leaves nothing of the cause, `realistic` where something takes its place.
    """

    name: str
    broken: Recipe
    clean: Recipe
    cause: str
    end: str = "realistic"
    ranks: int = 1


def faults(overrides: Sequence[str] = ()) -> tuple[Fault, ...]:
    """The six faults, at sizes at which each is the shortest stave of this machine.

    Those of two ranks use two GPUs over NCCL, on a machine with fewer the CPU over gloo.
    """
    gpu, pair = hardware.device()[0] == "cuda", gpus() >= 2
    common = ("log.skip=3", "name=bench-diagnosis")
    here = ("workload.size=small", "batch.micro=8") if gpu else ("workload.size=tiny", "batch.micro=2", "device=cpu")
    # Large enough for gloo's own work, which stays when the slow link has gone, to be small beside it.
    there = ("workload.size=tiny", "batch.micro=8", "device=cpu", "data.loader=synthetic") if not pair else \
        ("workload.size=small", "batch.micro=8", "device=cuda", "data.loader=synthetic")
    # NCCL's real link can't be freed again while the job runs, so there the workload holds its messages back.
    paced = (PLANTED + "SlowExchange",) if pair else ("ddp.slow_link=gloo:0.03GB/s",)
    still = ("data.loader=synthetic",)
    often = f"workload.options.rounds={1 if gpu else 3}"  # large against what neighbours on a small machine do
    workers = ("data.workers=4" if gpu else "data.workers=2", "data.loader=webdataset")

    def fault(name: str, changes: Sequence[str], cause: str, end: str = "realistic", base: Sequence[str] = here,
              ranks: int = 1, cure: str = "workload.use=vla") -> Fault:
        broken = recipe("competent", *common, *base, *changes, *overrides)
        return Fault(name, broken, broken.with_(cure), cause, end, ranks)

    slow = f"workload.options.slow_seconds={0.03 if gpu else 0.06}"
    unfused = ("optimizer.fused=false", "optimizer.foreach=false", "batch.micro=1")
    return (
        fault("slow loader", [PLANTED + "SlowLoader", *workers, slow], "data"),
        fault("reads by the host", [PLANTED + "HostReads", *still, often], "synchronisation"),
        fault("tiny operators", [PLANTED + "TinyOperators", *still, often], "loops"),
        fault("for-loop optimizer", [*unfused, *still], "optimizer", cure="optimizer.fused=true"),
        fault("paced exchange", paced, "communication", "ideal", there, 2),
        fault("late rank", [PLANTED + "LateRank"], "late rank", "ideal", there, 2),
    )


def gpus() -> int:
    """GPUs that this process may use."""
    return len(hardware.visible_gpus())


def run(which: Sequence[Fault] | None = None, blocks: int = 8, steps: int = 4,
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Plant each fault, predict, remove it, and compare; by default all of `faults`.

    keep: is given the record so far after each fault, so that a run that is cut short leaves what it has measured.
    """
    chosen = tuple(which) if which is not None else faults()
    settings: dict[str, Any] = {"blocks": blocks, "steps_a_block": steps, "faults": {}, "failed": {},
                                "error": "predicted over measured speed-up, less 1: above 0, too much was promised"}
    record = Record("diagnosis", settings, [], {}, 0.0)
    for group in _jobs(chosen):
        names = {fault.name: fault for fault in group}
        for name, found in _planted(group, blocks, steps, settings["failed"]):
            record = _with(record, names[name], found)
            print(f"{name}: {found['line']}", flush=True)
            keep(record)
    for name, sentence in settings["failed"].items():
        print(f"{name}: {sentence}", flush=True)
    return record


def _jobs(chosen: Sequence[Fault]) -> list[list[Fault]]:
    """Faults that may share a job: as many ranks, one link, one device. What forks a loader's workers comes first."""
    groups: dict[tuple[int, str | None, str], list[Fault]] = {}
    for fault in chosen:
        groups.setdefault((fault.ranks, fault.broken.ddp.slow_link, fault.broken.device), []).append(fault)
    return [sorted(group, key=lambda fault: fault.broken.data.loader == "synthetic") for group in groups.values()]


def selected(names: Sequence[str], overrides: Sequence[str] = ()) -> tuple[Fault, ...]:
    """The faults with these names, all for no names. Raises LfError for a name that none has."""
    known = {fault.name: fault for fault in faults(overrides)}
    for name in names:
        if name not in known:
            raise LfError(f"--fault '{name}': there are {', '.join(known)}.")
    return tuple(known[name] for name in names) if names else tuple(known.values())


def _planted(group: Sequence[Fault], blocks: int, steps: int,
             failed: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, what was predicted and what was measured) of each fault as it is found, from one job."""
    cases = [{"name": fault.name, "cause": fault.cause, "end": fault.end,
              **{side: prepare(getattr(fault, side), fault.ranks).to_toml() for side in ("broken", "clean")}}
             for fault in group]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "faults.json"
        path.write_bytes(orjson.dumps(cases))
        job = start(prepare(group[0].broken, group[0].ranks), group[0].ranks, module="lfhelpers.bench.diagnosis_ranks",
                    args=[str(path), str(blocks), str(steps)])
        seen: set[str] = set()
        running = True
        while running:
            running = job.poll() == "running"
            found = job.run.read(RESULT) or {}
            yield from ((name, found[name]) for name in found if name not in seen)
            seen |= set(found)
            time.sleep(LOOK if running else 0.0)
        try:
            job.wait()
        except LaunchError as error:
            failed |= {fault.name: str(job.run.status["reason"] or error) for fault in group if fault.name not in seen}


def _where(fault: Fault) -> str:
    """What a row says of a fault that is on the CPU though the machine has a GPU."""
    return " (two ranks on the CPU)" if fault.ranks > 1 and fault.broken.device == "cpu" and gpus() else ""


def _with(record: Record, fault: Fault, found: dict[str, Any]) -> Record:
    """The record with one fault more."""
    every = record.settings["faults"] | {fault.name: found | {"cause": fault.cause, "end": fault.end,
                                                              "ranks": fault.ranks,
                                                              "device": fault.broken.device}}
    effect, name = found["effect"], f"{fault.name}{_where(fault)}"
    rows = [*record.rows, Row(f"{name}, predicted", found["expected"], found["low"], found["high"], "x", 1),
            Row(f"{name}, measured", effect["ratio"], effect["low"], effect["high"], "x", effect["n"])]
    checks = {"faults_planted": float(len(every)),
              "faults_ranked_first": float(sum(one["first"] == one["cause"] for one in every.values())),
              "ceiling_error_max": max(abs(one["error"]) for one in every.values())}
    return replace(record, rows=rows, checks=checks, settings=record.settings | {"faults": every},
                   aa_spread=max(record.aa_spread, effect["aa_spread"]))
