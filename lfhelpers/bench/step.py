"""`lfhelpers bench step`: one training step, lever by lever, against the step as found.

Every rung of the ladder is timed in blocks that alternate with the as-found step in the same process, so clocks and
neighbours hit both alike; batches lie on the device, so no data is waited for. Each size and micro-batch has a process
of its own, and compilation is timed in fresh processes, cold (with empty caches) and warm.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from lfhelpers.bench.trainer import Trainer
from lfhelpers.errors import LfError
from lfhelpers.levers.table import LEVERS
from lfhelpers.measure import hardware, isolated, kernels, statistics
from lfhelpers.measure.record import Record, Row
from lfhelpers.recipe import Recipe, recipe

OUTSIDE = ("workers do all preprocessing", "asynchronous copy", "lean DDP", "large buckets", "gradients in place",
           "sharded optimizer", "measured loader")
"""Levers that one GPU's step on batches of its own doesn't feel."""
SHORT = ("as found", "+ no read in the step", "+ frozen part ahead")
"""As found, competent and full, so far as a step on one GPU tells them apart."""
STEPS = 5
CONVENTION = "model FLOPs of forward and backward (frozen parts forward only, no recomputation) over the dense peak"


@dataclass(frozen=True)
class Case:
    """One size and micro-batch, with the rungs to time; None: all."""

    size: str
    micro: int
    rungs: tuple[str, ...] | None = SHORT
    profile: bool = False

    @property
    def name(self) -> str:
        """As in `full_mb16`."""
        return f"{self.size}_mb{self.micro}"


CASES = (Case("full", 16, None, True), Case("full", 64, SHORT, True), Case("small", 32, SHORT, True),
         Case("small", 16), Case("small", 64))
TINY = (Case("tiny", 4, None),)
"""What a machine without a GPU can time: the mechanism, and no claim."""


def run(cases: Sequence[Case] | None = None, blocks: int = 6, compile_size: str | None = "full",
        overrides: Sequence[str] = (), keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure all cases, and cold and warm compilation of one size, where there is a GPU.

    keep: is given the record so far after each part, so that a run that is cut short leaves what it has measured.
    """
    gpu = hardware.device()[0] == "cuda"  # asks NVML, so that the processes of the cases can use CUDA
    settings: dict[str, Any] = {
        "steps_a_block": STEPS, "blocks": blocks, "precision": "bf16", "batches": "random, on the device",
        "mfu": CONVENTION, "overrides": list(overrides), "cases": {}, "failed": {}}
    record = Record("step", settings, [], {}, 0.0)
    for case in tuple(cases) if cases else CASES if gpu else TINY:
        try:
            found = isolated.call(_case, case, blocks, tuple(overrides), timeout=500)
        except LfError as error:
            settings["failed"][case.name] = str(error)
            continue
        settings["cases"][case.name] = found["notes"]
        record = replace(record, rows=[*record.rows, *(Row(**row) for row in found["rows"])],
                         checks=record.checks | found["checks"], aa_spread=max(record.aa_spread, found["spread"]))
        print(f"{case.name}: {found['notes']['line']}", flush=True)
        keep(record)
    if compile_size and gpu:
        for name, seconds in _compilation(compile_size, tuple(overrides), settings["failed"]):
            print(f"{name}: {seconds:.1f} s", flush=True)
            record = replace(record, rows=[*record.rows, Row.of(name, [seconds], "s")],
                             checks=record.checks | {name: seconds})
            keep(record)
    return record


def cases(names: Sequence[str]) -> tuple[Case, ...] | None:
    """Cases by name, as `full_mb16`; those that are not in CASES get the short ladder. None for no names."""
    known = {case.name: case for case in CASES + TINY}
    return tuple(known[name] if name in known else _parsed(name) for name in names) or None


def _parsed(name: str) -> Case:
    size, _, micro = name.partition("_mb")
    if not micro.isdigit():
        raise LfError(f"--case {name}: write SIZE_mbMICRO, for example {CASES[0].name}.")
    return Case(size, int(micro))


def ladder(case: Case, overrides: Sequence[str] = ()) -> list[tuple[str, Recipe]]:
    """(name, recipe) of the case's rungs, from as_found to full; what doesn't touch the step is left out."""
    changes = (f"workload.size={case.size}", f"batch.micro={case.micro}", "log.skip=5", "steps=1000", *overrides)
    job, rungs = recipe("as_found", *changes), []
    rungs.append(("as found", job))
    for lever in LEVERS:
        if lever.name not in OUTSIDE:
            job = lever.pull(job)
            rungs.append((f"+ {lever.name}", job))
    return [rung for rung in rungs if case.rungs is None or rung[0] in case.rungs]


def _case(case: Case, blocks: int, overrides: tuple[str, ...]) -> dict[str, Any]:
    """All rungs of a case; in a process of its own."""
    rungs = ladder(case, overrides)
    base = Trainer(rungs[0][1])
    base.warm_up()
    rows, spread, medians, tables, found = [], 0.0, {}, {}, []
    for name, job in rungs[1:]:
        torch.compiler.reset()
        trainer = Trainer(job)
        trainer.warm_up()
        compared = statistics.interleave(partial(base.run, STEPS), partial(trainer.run, STEPS), blocks, calls=1,
                                         settle=_settle)
        effect = compared.effect
        spread = max(spread, effect.aa_spread)
        milliseconds = [1e3 * seconds / STEPS for seconds in compared.b]
        found += [1e3 * seconds / STEPS for seconds in compared.a]
        rows += [_row(case, name, milliseconds),
                 asdict(Row(f"{case.name} {name}", effect.ratio, effect.low, effect.high, "x as found", effect.n))]
        medians[name] = float(np.median(milliseconds))
        print(f"{case.name} {name}: {medians[name]:.1f} ms, {effect}", flush=True)
        if case.profile and name in SHORT:
            tables[name] = _kernels(trainer)
        last = effect.ratio, medians[name], _mfu(trainer, medians[name]), _memory()
        trainer.close()
        del trainer
        gc.collect()
    return _found(case, [_row(case, rungs[0][0], found), *rows], spread, last, tables)


def _found(case: Case, rows: list[dict[str, Any]], spread: float, last: tuple[float, float, float | None, float | None],
           tables: dict[str, Any]) -> dict[str, Any]:
    ratio, milliseconds, mfu, memory = last
    checks = {f"{case.name}_over_as_found": ratio, f"{case.name}_ms": milliseconds}
    if mfu is not None:
        checks[f"{case.name}_mfu"] = mfu
    line = f"{milliseconds:.1f} ms, {ratio:.2f} x as found" + (f", MFU {100 * mfu:.1f} %" if mfu is not None else "")
    return {"rows": rows, "checks": checks, "spread": spread,
            "notes": {"line": line, "peak_gib": memory, "clock_mhz": _clock(),
                      "kernels": {name: table for name, table in tables.items() if table}}}


def _row(case: Case, name: str, milliseconds: Sequence[float]) -> dict[str, Any]:
    return asdict(Row.of(f"{case.name} {name}", milliseconds, "ms"))


def _kernels(trainer: Trainer) -> list[dict[str, Any]] | None:
    if trainer.ranks.device.type != "cuda":
        return None
    return [asdict(group) for group in kernels.groups(lambda: trainer.run(1))]


def _mfu(trainer: Trainer, milliseconds: float) -> float | None:
    if trainer.ranks.device.type != "cuda":
        return None
    peak, _ = hardware.peak_tflops(torch.cuda.get_device_name(), trainer.job.precision.mode)
    samples = trainer.job.batch.micro * trainer.job.batch.accumulate
    return trainer.workload.flops_per_sample() * samples / (milliseconds / 1e3) / (peak * 1e12) if peak else None


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory() -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def _clock() -> int | None:
    """The GPU's SM clock right after the last block, in MHz."""
    module, handle = hardware.nvml(), hardware.nvml_handle()
    return int(module.nvmlDeviceGetClockInfo(handle, module.NVML_CLOCK_SM)) if module and handle else None


def _compilation(size: str, overrides: tuple[str, ...], failed: dict[str, str]) -> Iterator[tuple[str, float]]:
    """Cold and warm: the first step's seconds in a fresh process, beyond those of a step that is compiled."""
    job = ladder(Case(size, 16, None), overrides)[-1][1]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold_compile_s", "warm_compile_s"):
            try:
                yield name, isolated.call(_first_step, job, folder, timeout=300)
            except LfError as error:
                failed[name] = str(error)
            # What a container loses between two runs; the portable cache stays.
            shutil.rmtree(f"{folder}/inductor", ignore_errors=True)


def _first_step(job: Recipe, folder: str) -> float:
    os.environ |= {"LFHELPERS_CACHE": f"{folder}/kept", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
                   "TRITON_CACHE_DIR": f"{folder}/inductor/triton"}
    trainer = Trainer(job)
    _settle()
    began = time.perf_counter()
    trainer.run(1)
    _settle()
    first = time.perf_counter() - began
    trainer.warm_up()
    _settle()
    began = time.perf_counter()
    trainer.run(1)
    _settle()
    plain = time.perf_counter() - began
    trainer.close()  # keeps what was compiled
    return first - plain
