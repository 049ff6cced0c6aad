"""`lfhelpers bench pitfalls`: every pitfall's two figures, whether detectors keep quiet, find, and what they cost.

A detector that is on in every run must be nearly free and must not cry wolf. So clean runs of different recipes are
made and every alarm in them is counted; runs with a planted fault follow, each of which must be found; and what the
detectors do for a step is timed alone, on the host, and set beside a step of `competent`. That share is an upper bound
on a GPU: the host does it while the device works.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lfhelpers import pitfalls
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware, isolated
from lfhelpers.measure.record import Record, Row
from lfhelpers.pitfalls import base, checked
from lfhelpers.pitfalls.base import Small, trained
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.workloads.base import Batch

STEPS = 64
CLEAN = ((), ("data.workers=2",), ("batch.micro=4", "batch.accumulate=2"), ("precision.mode=bf16",),
         ("data.last=drop",), ("optimizer.fused=false",), ("data.shuffle=block",), ("optimizer.clip_norm=0",),
         ("batch.micro=16",), ("optimizer.schedule=constant",))
"""Overrides of the clean runs, which take turns with another seed each."""


class Leaking(Small):
    """Small, which keeps a MiB of each step."""

    kept: tuple[Tensor, ...] = ()

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Small's loss."""
        self.kept = (*self.kept, torch.ones(2**18, device=batch["x"].device))
        return super().loss(model, batch, draws)


class Damaged(Small):
    """Small, one sample of which is not a number: that of workload.options.sample."""

    def sample(self, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """Small's sample."""
        tensors = super().sample(members)
        bad = base.members(int(self.job.workload.options["sample"])) == members
        return tensors | {"x": tensors["x"] * torch.nan if bad else tensors["x"]}


def run(names: Sequence[str] = pitfalls.NAMES, runs: int = 20,
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure the pitfalls of these names, and `runs` clean runs and as many of each planted fault."""
    record = Record("pitfalls", {"steps": STEPS, "said": {}, "alarms": [], "failed": {}}, [], {}, 0.0)
    for name in names:
        record = _with_pitfall(record, name)
    keep(record)
    share, parts = isolated.call(_cost, timeout=300)
    rows = [Row.of(f"detectors, {part}", times, "us") for part, times in parts.items()]
    record = replace(record, rows=[*record.rows, *rows], checks=record.checks | {"detector_cost_share": share})
    keep(record)
    alarms = isolated.call(_clean, runs, timeout=300)
    found = isolated.call(_planted, runs, timeout=400)
    record.settings["alarms"] = alarms
    return replace(record, checks=record.checks | {f"false_alarms_in_{runs}_clean": float(len(alarms))} | found)


def _with_pitfall(record: Record, name: str) -> Record:
    """The record with one more pitfall: both figures, or why there are none."""
    try:
        row = isolated.call(pitfalls.show, name, timeout=120)
    except LfError as error:
        row = {"broken": None, "cured": None}
        record.settings["failed"][name] = str(error)
    record.settings["said"][name] = row.get("said", "")
    told = row["broken"] is not None and row["broken"] != row["cured"]
    rows = [Row.of(f"{name}, {half}", [row[half]] if row[half] is not None else [], "") for half in ("broken", "cured")]
    checks = {"pitfalls_total": record.checks.get("pitfalls_total", 0.0) + 1,
              "pitfalls_with_both_numbers": record.checks.get("pitfalls_with_both_numbers", 0.0) + told}
    print(f"{name}: {row['broken']} -> {row['cured']}", flush=True)
    return replace(record, rows=[*record.rows, *rows], checks=record.checks | checks)


def _device() -> str:
    return f"device={hardware.device()[0]}"


def _clean(runs: int) -> list[str]:
    """In a process of its own: what is found in clean runs."""
    found = []
    for seed in range(runs):
        with trained(f"steps={STEPS}", f"seed={seed}", _device(), *CLEAN[seed % len(CLEAN)]) as made:
            found += [f"{', '.join(CLEAN[seed % len(CLEAN)])}: {item}" for item in checked.check(made)]
    return found


def _planted(runs: int) -> dict[str, float]:
    """In a process of its own: in what share of the runs the planted fault was found, by fault."""
    leaks = damaged = 0
    for seed in range(runs):
        with trained(f"steps={STEPS}", f"seed={seed}", _device(), use=Leaking) as made:
            leaks += any(item.pitfall == "loss_list" for item in checked.check(made))
        with trained("steps=8", f"seed={seed}", f"workload.options.sample={seed}", _device(), use=Damaged) as made:
            damaged += any(f"of sample {seed} is not finite" in item.text for item in checked.check(made))
    return {"leaks_found": leaks / runs, "damaged_samples_found": damaged / runs}


def _cost() -> tuple[float, dict[str, list[float]]]:
    """In a process of its own: the share of a step of `competent`, and microseconds a step by detector."""
    from lfhelpers.train.order_hash import OrderHash
    from lfhelpers.train.sentinel import Sentinel
    from lfhelpers.train.straggler import Straggler
    from lfhelpers.train.trainer import Trainer, batch

    gpu = hardware.device()[0] == "cuda"
    trainer = Trainer(recipe("competent", f"workload.size={'full' if gpu else 'tiny'}", "log.skip=2", "steps=10000"))
    trainer.warm_up()
    began, steps = time.perf_counter(), 20
    trainer.run(steps).tolist()
    step_us = 1e6 * (time.perf_counter() - began) / steps
    host = batch(trainer.workload, trainer.job, 0, torch.device("cpu"))
    rows = slice(0, trainer.job.batch.micro)
    sentinel, order, straggler = Sentinel(trainer.ranks), OrderHash(trainer.ranks), Straggler(trainer.ranks)
    with tempfile.TemporaryDirectory() as folder:
        for hook in (sentinel, order, straggler):
            hook.run_start(trainer.job, Run(Path(folder)), trainer.parts.model)

        def hashed(step: int) -> None:
            order.batch_taken(step, rows, host)
            order.step({"step": step + 1})
        row = {"step": 100, "probe": False, "ms": {}, "step_ms": 1.0}
        parts = {"memory": _timed(sentinel.step_end), "order": _timed(hashed),
                 "late rank": _timed(lambda _: straggler.step(row))}
    trainer.close()
    return sum(sum(times) / len(times) for times in parts.values()) / step_us, parts


def _timed(call: Callable[[int], object], count: int = 200) -> list[float]:
    """Microseconds of each call, with the number of its step; the first ones are left out."""
    found: list[Any] = []
    for step in range(count):
        began = time.perf_counter()
        call(step)
        found.append(1e6 * (time.perf_counter() - began))
    return found[count // 10:]
