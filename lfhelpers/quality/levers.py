"""Has a lever passed its gate on this model? What each class of lever must show, from two runs over the same samples.

`exact` levers are compared with the same kernels in a fixed order, so that equal losses must be equal to the bit:
that needs runs of their own, short ones. `reordered` ones are judged by the gradients of one batch against float64,
and by whether the losses of a run stay near those of the run without them. For `changed` ones neither says anything:
they need seeds (quality.equivalence).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lfhelpers.errors import LfError
from lfhelpers.measure import isolated
from lfhelpers.quality import gates
from lfhelpers.recipe import Recipe
from lfhelpers.train.trainer import Trainer, batch

EXACT_STEPS = 6
"""Steps that the gate `exact` compares, after those that a CUDA graph takes before it is recorded."""
ARITHMETIC = ("workload", "precision", "compile", "frozen", "optimizer")
"""Sections of the recipe that may change a gradient; of others the losses alone can tell."""
ROWS = 4
"""Samples of the batch whose gradients are compared."""


@dataclass(frozen=True)
class Verdict:
    """Whether a lever passed, and the figures it is judged by, as a sentence."""

    passed: bool
    found: str


def fixed(without: Recipe, with_lever: Recipe, device: str) -> list[Recipe]:
    """Both jobs for the gate `exact`: a few steps, as many of each, and kernels in a fixed order."""
    short = [job.with_(**{"precision.deterministic": True, "log.probe": False, "log.profile": False, "log.skip": 0,
                          "optimizer.schedule": "constant"}) for job in (without, with_lever)]
    steps = max(job.untimed(device) for job in short) + EXACT_STEPS
    return [job.with_(steps=steps) for job in short]


def exact(without: Sequence[float], with_lever: Sequence[float]) -> Verdict:
    """Losses of the same steps must be equal to the bit. Raises LfError where they are not of the same steps."""
    _same_steps(without, with_lever)
    apart = [step for step, pair in enumerate(zip(without, with_lever, strict=True), 1) if pair[0] != pair[1]]
    if not apart:
        return Verdict(True, f"all {len(without)} losses are equal to the bit")
    first = apart[0] - 1
    return Verdict(False, f"{len(apart)} of {len(without)} losses differ, first that of step {apart[0]}: "
                          f"{without[first]:.9g} without it, {with_lever[first]:.9g} with it")


def reordered(without: Sequence[float], with_lever: Sequence[float], error: float | None = None,
              eager: float | None = None) -> Verdict:
    """Losses must stay in the band, and gradients as near to float64 as eager's, where these errors are given."""
    _same_steps(without, with_lever)
    ours, theirs = torch.tensor(with_lever, dtype=torch.float64), torch.tensor(without, dtype=torch.float64)
    band = gates.band(ours, theirs, last=max(1, min(20, len(without) // 4)))
    found = (f"median loss of a step {band.step:.3%} apart (limit {gates.STEP:.1%}), mean of the last {band.end:.3%} "
             f"(limit {gates.END:.1%})")
    if error is None or eager is None:
        return Verdict(band.passes, found)
    near = error <= gates.GRADIENT * eager
    return Verdict(band.passes and near, f"gradients {error / eager:.2f} times as far from float64 as eager's (limit "
                                         f"{gates.GRADIENT}); {found}")


def gradient_errors(jobs: Mapping[str, Recipe], timeout: float = 500.0) -> dict[str, float]:
    """Each recipe's gradients of one batch against float64, as a share of their length; in one process of its own.

    All must be of one workload, size and seed. The reference is the first recipe's own model, computed in float64.
    """
    return isolated.call(_errors, dict(jobs), timeout=timeout)


def _errors(jobs: Mapping[str, Recipe]) -> dict[str, float]:
    reference = _gradients(next(iter(jobs.values())).with_(**{
        "precision.mode": "fp32", "precision.weights": "fp32", "compile.scope": "none", "graph.scope": "none",
        "frozen.packed": False, "frozen.ahead": False}), in_float64=True)
    found: dict[str, float] = {}
    for name, job in jobs.items():
        torch.compiler.reset()
        found[name] = gates.error(_gradients(job, in_float64=False), reference)
    return found


def _gradients(job: Recipe, in_float64: bool) -> torch.Tensor:
    trainer = Trainer(job.with_(**{"batch.micro": ROWS, "batch.accumulate": 1}))
    try:
        device = trainer.ranks.device
        given = batch(trainer.workload, trainer.job, 0, device)
        draws = trainer.workload.draws(ROWS, torch.Generator(device).manual_seed(0))
        return gates.gradients(trainer.workload, trainer.parts.model, given, draws,
                               None if in_float64 else trainer.parts.precision)
    finally:
        trainer.close()


def _same_steps(without: Sequence[Any], with_lever: Sequence[Any]) -> None:
    if not without or len(without) != len(with_lever):
        raise LfError(f"a gate compares the same steps of two runs; there are {len(without)} and {len(with_lever)}.")
