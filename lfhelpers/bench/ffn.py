"""`lfhelpers bench ffn`: the fused gated FFN by hand, by Triton, by torch.compile and by Liger, against eager.

Four parts, each of its own use: how far results are from float64 and what is kept for backward; the time of the whole
FFN at five shapes; the bytes a second of the kernels between its products; and a whole training step with the
dispatcher on against off. Times are kernel times, replayed from a CUDA graph on inputs that no cache holds, in turn, so
the price of launching from Python is left out for all alike: a step in a graph doesn't pay it either.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lfhelpers.bench import ffn_cases as cases
from lfhelpers.errors import LfError, nearest
from lfhelpers.levers.gated_ffn_op import KERNELS
from lfhelpers.measure import hardware, isolated, statistics
from lfhelpers.measure.record import Record, Row

PARTS = ("correctness", "kernels", "small", "full")
SIZES = {"small": ("small", 32), "full": ("full", 16)}
TINY_STEP = [("tiny", 4)]
SEEDS = 5
ROUNDS = 12
TIMEOUT = 400
Finding = tuple[str, list[Row], dict[str, float], float, Any]
"""What a part found: its name, rows, checks, A/A spread, and notes for the record's settings."""


def run(parts: Sequence[str] = (), blocks: int = 6, rounds: int = ROUNDS,
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Measure the parts, all if none is named; without a GPU tiny shapes, which show the mechanism and settle nothing.

    keep: is given the record so far after each part. Raises LfError for a part that doesn't exist.
    """
    for part in parts:
        if part not in PARTS:
            raise LfError(f"--part {part} does not exist; {nearest(part, PARTS)}")
    kind = hardware.device()[0]  # asks NVML, so that the processes of the parts can use CUDA
    settings: dict[str, Any] = {
        "dtype_of_step": "bf16", "steps_a_block": cases.STEPS, "blocks": blocks, "rounds": rounds, "inputs": "random",
        "time": "kernels, replayed from a CUDA graph, inputs in turn", "notes": {}, "failed": {}}
    record = Record("ffn", settings, [], {}, 0.0)
    for name, rows, checks, spread, notes in _found(parts or PARTS, kind, blocks, rounds, settings["failed"]):
        settings["notes"][name] = notes
        merged = dict(record.checks)
        for check, value in checks.items():  # a goal for all shapes holds for the worst of them
            merged[check] = min(value, merged[check]) if check in merged else value
        record = replace(record, rows=[*record.rows, *rows], checks=merged, aa_spread=max(record.aa_spread, spread))
        print(f"{name}: {', '.join(f'{check} {value:.3f}' for check, value in checks.items())}", flush=True)
        keep(record)
    return record


def _found(parts: Sequence[str], kind: str, blocks: int, rounds: int, failed: dict[str, str]) -> Iterator[Finding]:
    """What each part finds; one that fails is a sentence in `failed`, and the others go on."""
    gpu = kind == "cuda"
    jobs: list[tuple[str, Callable[[], Finding]]] = []
    if "correctness" in parts:
        jobs.append(("correctness", partial(_correctness, kind)))
    steps = [SIZES[part] for part in parts if part in SIZES]
    jobs += [(f"step of {size}", partial(_step, size, micro, blocks, kind))
             for size, micro in (steps if gpu else TINY_STEP[:len(steps)])]
    if "kernels" in parts:
        jobs += [(case.name, partial(_kernels, case, rounds, kind)) for case in (cases.CASES if gpu else cases.TINY)]
    for name, job in jobs:
        try:
            yield job()
        except LfError as error:
            failed[name] = str(error)
            print(f"{name}: failed: {error}", flush=True)


def _correctness(kind: str) -> Finding:
    seeds = [secrets.randbelow(2**31) for _ in range(SEEDS)]
    found = isolated.call(cases.correctness, seeds, kind, timeout=TIMEOUT)
    errors, kept = found["errors"], found["kept"]
    ours = [name for name in errors if name in KERNELS]  # a compiler's own choice of what it keeps is a row beside them
    rows = [Row(f"error {name}", value, value, value, "x eager bf16", SEEDS) for name, value in errors.items()]
    rows += [Row.of(f"kept {name}", [value / 2**20], "MiB") for name, value in kept.items()]
    checks = {"ffn_error_over_eager": max(errors[name] for name in ours),
              "ffn_saved_bytes_over_eager": max(kept[name] for name in ours) / kept["eager"]} if ours else {}
    return "correctness", rows, checks, 0.0, {"seeds": seeds, "failed": found["failed"]}


def _kernels(case: cases.Case, rounds: int, kind: str) -> Finding:
    found = isolated.call(cases.kernels, case, rounds, kind, timeout=TIMEOUT)
    rows: list[Row] = []
    notes: dict[str, Any] = {}
    checks: dict[str, float] = {}
    spread = 0.0
    for (dtype, backward), mode in found["modes"].items():
        name = f"{'bf16' if dtype == 'bfloat16' else 'fp32'}, {'both ways' if backward else 'forward'}"
        notes[name] = {key: mode[key] for key in ("chosen", "failed", "peak_tflops")}
        rows += [Row.of(f"{case.name}, {name}: {side}", [1e3 * each for each in values], "ms")
                 for side, values in mode["seconds"].items()]
        rows += _dispatched(f"{case.name}, {name}: dispatched", mode)
        for check, effect in _effects(mode).items():
            spread = max(spread, effect.aa_spread)
            if check == "ffn_over_compile" or (case.decoder and backward and dtype == "bfloat16"):
                checks[check] = min(effect.ratio, checks.get(check, effect.ratio))
    if between := found["between"]:
        rows += [Row.of(f"{case.name}: {name}", values, "GB/s") for name, values in between["gb_s"].items()]
        notes["peak_gb_s"] = between["peak_gb_s"]
    return case.name, rows, checks, spread, notes


def _dispatched(name: str, mode: dict[str, Any]) -> list[Row]:
    """What the dispatcher's choice reaches, and how many times as fast as eager and torch.compile it is."""
    rows = [Row.of(name, [mode["flops"] / each / 1e12 for each in mode["seconds"][mode["chosen"]]], "TFLOP/s")]
    units = {"ffn_over_eager": "x eager", "ffn_over_compile": "x compiled"}
    return rows + [Row(name, effect.ratio, effect.low, effect.high, units[check], effect.n)
                   for check, effect in _effects(mode).items()]


def _effects(mode: dict[str, Any]) -> dict[str, statistics.Effect]:
    seconds = mode["seconds"]
    against = {"ffn_over_eager": "eager", "ffn_over_compile": "compiled"}
    return {check: statistics.effect(seconds[name], seconds[mode["chosen"]])
            for check, name in against.items() if name in seconds and mode["chosen"] in seconds}


def _step(size: str, micro: int, blocks: int, kind: str) -> Finding:
    found = isolated.call(cases.step, size, micro, blocks, kind, timeout=TIMEOUT)
    effect = found["effect"]
    rows = [Row.of(f"step of {size}_mb{micro}, {side}", [1e3 * each for each in found[side]], "ms")
            for side in ("off", "on")]
    rows.append(Row(f"step of {size}_mb{micro}, on", effect.ratio, effect.low, effect.high, "x off", effect.n))
    rows += [Row.of(f"step of {size}_mb{micro}, {side}", [peak], "GiB") for side, peak in found["peak_gib"].items()]
    checks = {f"step_{size}_over_off": effect.ratio}
    return f"step of {size}", rows, checks, effect.aa_spread, {"peak_gib": found["peak_gib"]}
