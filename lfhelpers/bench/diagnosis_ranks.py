"""What runs as each rank of `lfhelpers bench diagnosis`: faults, one after the other, predicted and then removed."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lfhelpers.bench.diagnosis import RESULT
from lfhelpers.diagnose import predictions, tiers
from lfhelpers.diagnose.ablate import Options, compare, measure
from lfhelpers.diagnose.ablation import NO_EXCHANGE, Ablation
from lfhelpers.levers import slow_link
from lfhelpers.levers.overlap import wrap
from lfhelpers.levers.paced import Paced
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.ranks import Ranks, identify, joined
from lfhelpers.workloads.base import find

EXCHANGES = 12
FAST = slow_link.Wire(1e12, 0.0)
"""A link that is never waited for, beyond what gloo itself takes."""


def examine(broken: Recipe, clean: Recipe, cause: str, end: str, ranks: Ranks, options: Options,
            of: str) -> dict[str, Any]:
    """Predict from the broken recipe alone, then measure both; every rank must call it, and all get the same.

    of: what the prediction is kept under, and its score, in the calibration beside the runs.
    """
    found = measure(broken, ranks, options)
    assert options.trace is not None
    ranks.barrier()
    ceilings = tiers.of_ablation(found, options.trace)
    told = ceilings.of(cause)
    if ranks.world > 1 and ranks.device.type == "cpu":  # GPUs exchange beside backward: nothing to speak of stays
        told = replace(told, ideal=found.full_ms / left_ms(found, cause, found.full_ms / told.ideal,
                                                           exchange_ms(broken, ranks)))
        told = replace(told, realistic=min(told.realistic, told.ideal))
    if ranks.first:
        predictions.keep([told if one.cause == cause else one for one in ceilings], of)
    compared = compare(broken, clean, ranks, options, before=_link(broken))
    score = predictions.scored(cause, told.realistic, told.ideal, compared.effect.ratio, end)
    if ranks.first:
        predictions.score(cause, compared.effect, end, of)
    return {**asdict(score), "first": ceilings.listed[0].cause, "effect": asdict(compared.effect),
            "verdict": ceilings.verdict, "table": ceilings.rows(), "ablation": found.rows(),
            "notes": list(ceilings.notes), "line": f"{score}; first: {ceilings.listed[0].cause}"}


def left_ms(found: Ablation, cause: str, ideal_ms: float, exchange_ms: float) -> float:
    """Milliseconds of the step that stay when a slow link or a late rank is gone, and the exchange itself is not.

    ideal_ms: the step with nothing left of the cause. exchange_ms: of the exchange alone, with nobody to wait for. A
    step without exchange knows none of it; behind the waiting for a late rank all hides but what the late rank shows.
    """
    if cause == "communication":
        return ideal_ms + exchange_ms
    own = max(found.step_ms(NO_EXCHANGE, rank) or 0.0 for rank in range(found.ranks))
    return ideal_ms + max(0.0, exchange_ms - max(0.0, found.full_ms - own))


class _Sums(nn.Module):
    """Parameters of the sizes of another model's trained ones, with next to no work beside their exchange."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.held = nn.ParameterList(nn.Parameter(one.detach().clone()) for one in model.parameters()
                                     if one.requires_grad)

    def forward(self) -> Tensor:
        return torch.stack([one.sum() for one in self.held]).sum()


def exchange_ms(job: Recipe, ranks: Ranks) -> float:
    """Milliseconds of the recipe's exchange alone, unpaced: DDP's hooks and copies as well as gloo's messages.

    By a model of as many and as large parameters that computes nothing, with DDP and without. Every rank must call it.
    """
    group = dist.group.WORLD
    if isinstance(group, Paced):
        group.wire = FAST
    sums = _Sums(find(job).model())
    wrapped = wrap(job, sums, ranks.device)
    spent: dict[nn.Module, list[float]] = {sums: [], wrapped: []}
    for _ in range(EXCHANGES):
        for module, times in spent.items():
            module.zero_grad(set_to_none=True)
            ranks.barrier()
            began = time.perf_counter()
            module().backward()
            times.append(1e3 * (time.perf_counter() - began))
    alone, both = (statistics.median(times) for times in spent.values())
    return max(ranks.gather(max(0.0, both - alone)))


def _link(broken: Recipe) -> Callable[[int], None]:
    """Lays the slow wire for the broken recipe's blocks, and a fast one for the other's, where one was declared."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if not isinstance(group, Paced):
        return lambda side: None
    slow = slow_link.parse(str(broken.ddp.slow_link))
    assert isinstance(slow, slow_link.Wire)

    def lay(side: int) -> None:
        group.wire = FAST if side else slow
    return lay


def main() -> None:
    """`python -m lfhelpers.bench.diagnosis_ranks RUN_FOLDER FAULTS BLOCKS STEPS`, started by torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("faults", type=Path)
    parser.add_argument("blocks", type=int)
    parser.add_argument("steps", type=int)
    asked = parser.parse_args()
    run, found = Run(asked.run), {}
    ranks = identify(run.recipe.device)
    ranks.take_device()
    with joined(ranks, run.recipe.ddp.slow_link):
        for case in orjson.loads(asked.faults.read_bytes()):
            folder = run.path / "traces" / case["name"].replace(" ", "-")
            broken, clean = (_recipe(case[side]) for side in ("broken", "clean"))
            found[case["name"]] = examine(broken, clean, case["cause"], case["end"], ranks,
                                          Options(asked.blocks, asked.steps, folder), f"fault: {case['name']}")
            if ranks.first:
                run.write(RESULT, found)


def _recipe(text: str) -> Recipe:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return recipe(Path(file.name))


if __name__ == "__main__":
    main()
