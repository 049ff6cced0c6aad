"""From a run's steps to its summary.json: medians, throughput, the parts of a step over all ranks, MFU, memory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lfhelpers.measure.clock import PHASES
from lfhelpers.measure.hardware import peak_tflops
from lfhelpers.measure.statistics import summary
from lfhelpers.recipe import Recipe
from lfhelpers.train.ranks import Ranks

MFU_CONVENTION = "model FLOPs of forward and backward (frozen parts forward only, no recomputation) over the dense peak"


def rank_means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """One rank's mean milliseconds of each phase, of the step and of the host's share of it."""
    means = {phase: statistics.fmean(row["ms"][phase] for row in rows) for phase in PHASES}
    return means | {"step": statistics.fmean(row["step_ms"] for row in rows),
                    "host": statistics.fmean(row["host_ms"] for row in rows)}


def summarise(job: Recipe, ranks: Ranks, rows: Sequence[Mapping[str, Any]], means: list[dict[str, float]],
              exposed: float, flops_per_sample: float) -> dict[str, Any]:
    """The figures of summary.json. `rows` are rank 0's timed rows, `means` come from every rank.

    Parts are the mean over ranks; exposed communication (ms a step, train.communication) is taken out of backward, or
    of what a CUDA graph replays.
    """
    step_ms = [row["step_ms"] for row in rows]
    parts = {phase: statistics.fmean(mean[phase] for mean in means) for phase in PHASES}
    holder = "backward" if parts["backward"] >= parts["captured"] else "captured"
    communication = min(exposed, parts[holder])
    parts[holder] -= communication
    ordered = {
        "data_wait": parts["data_wait"], "host_to_device": parts["host_to_device"], "forward": parts["forward"],
        "backward": parts["backward"], "communication": communication,
        "optimizer": parts["optimizer"], "captured": parts["captured"], "other": parts["other"],
    }
    total = sum(ordered.values())
    # what a skipped step saw was not learnt from, but its time was spent
    samples_per_s = sum(row["samples"] for row in rows if not row["skipped"]) / sum(step_ms) * 1e3
    return {
        "device": ranks.device.type, "ranks": ranks.world, "micro": job.batch.micro, "accumulate": job.batch.accumulate,
        "precision": job.precision.mode,
        "step_ms": summary(step_ms),
        "samples_per_s": samples_per_s,
        "report": {"ms": ordered, "percent": {part: 100 * value / total for part, value in ordered.items()}},
        "ranks_ms": {phase: {"max": max(mean[phase] for mean in means),
                             "spread": max(mean[phase] for mean in means) - min(mean[phase] for mean in means)}
                     for phase in (*PHASES, "step")},
        "host_ms": statistics.fmean(mean["host"] for mean in means),
        "flops_per_sample": flops_per_sample,
        "recompiles": rows[-1]["graphs"] - rows[0]["graphs"],
        "mfu": _mfu(job, ranks, flops_per_sample * samples_per_s / ranks.world),
    }


def device_memory(ranks: Ranks) -> dict[str, float | None]:
    """Peak GPU memory in GiB: allocated (what the run needs) and reserved (what must fit); None on CPU."""
    if ranks.device.type != "cuda":
        return {"peak_gib": None, "reserved_gib": None}
    return {"peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "reserved_gib": torch.cuda.max_memory_reserved() / 2**30}


def _mfu(job: Recipe, ranks: Ranks, flops_per_s: float) -> dict[str, Any]:
    if ranks.device.type != "cuda":
        return {"value": None, "peak_tflops": None, "convention": "not given: a CPU has no published dense peak"}
    peak, reason = peak_tflops(torch.cuda.get_device_name(), job.precision.mode)
    return {"value": flops_per_s / (peak * 1e12) if peak else None, "peak_tflops": peak,
            "convention": f"{MFU_CONVENTION}; {reason}"}
