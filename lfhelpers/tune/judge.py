"""What a trial must keep to, as numbers that are 0 or less where it does: Optuna's constraints.

A faster job that learns less is no find, so quality is a limit and never part of the objective: a sum of speed and
loss would let the search buy one with the other. What a short job shows of quality is a proxy, cheap enough for each
trial, and one-sided: to learn more is no fault. The winner of many trials is partly the luckiest, so its quality is
asked again, with fresh runs (tune.verify).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lfhelpers.errors import LfError
from lfhelpers.levers.table import Equivalence
from lfhelpers.quality import gates


def constraints(found: Mapping[str, Any], base: Mapping[str, Any] | None, losses: Sequence[float],
                theirs: Sequence[float], equivalence: Equivalence, margin: float, memory_gib: float | None
                ) -> dict[str, float]:
    """{"memory", "gate", "quality"}: by what share a trial passes its limits; 0 or less is within them.

    found and base: figures (trial.figures) of the trial and of the base, None for the base itself, whose losses are
    `theirs`. quality: the proxy may be above the base's by the share `margin`. gate: losses step by step within the
    band of `exact` and `reordered` changes; `changed` ones answer to tost alone, when they have won.
    """
    limits: dict[str, float] = {}
    used = found.get("reserved_gib")
    if used is not None and memory_gib is not None:
        limits["memory"] = used / memory_gib - 1
    limits["quality"] = _over(found["loss"], base["loss"] if base else found["loss"], margin)
    limits["gate"] = _band(losses, theirs) if base and equivalence != "changed" else 0.0
    return limits


def _over(loss: float, base: float, margin: float) -> float:
    if not math.isfinite(loss):
        return math.inf
    return (loss - base) / max(abs(base), 1e-12) - margin


def _band(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How far outside the band of quality.gates the losses are; steps that fp16 skipped have none to compare."""
    pairs = [pair for pair in zip(ours, theirs, strict=False) if all(map(math.isfinite, pair))]
    if not pairs:
        raise LfError("a trial and the base have no step in common whose losses are finite.")
    first, second = torch.tensor(pairs, dtype=torch.float64).T
    found = gates.band(first, second, last=max(1, min(20, len(pairs) // 4)))
    return max(found.step / gates.STEP, found.end / gates.END) - 1
