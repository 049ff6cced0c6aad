"""What runs as each rank of `lfhelpers bench diagnosis`: faults, one after the other, predicted and then removed."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist

from lfhelpers.bench.diagnosis import RESULT
from lfhelpers.diagnose import tiers
from lfhelpers.diagnose.ablate import Options, compare, measure
from lfhelpers.diagnose.predictions import scored
from lfhelpers.levers import slow_link
from lfhelpers.levers.paced import Paced
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.ranks import Ranks, identify, joined
from lfhelpers.workloads.base import find

FAST = slow_link.Wire(1e12, 0.0)
"""A link that is never waited for, beyond what gloo itself takes."""


def examine(broken: Recipe, clean: Recipe, cause: str, end: str, ranks: Ranks, options: Options) -> dict[str, Any]:
    """Predict from the broken recipe alone, then measure both; every rank must call it, and all get the same."""
    found = measure(broken, ranks, options)
    assert options.trace is not None
    ranks.barrier()
    ceilings = tiers.of_ablation(found, options.trace)
    compared = compare(broken, clean, ranks, options, before=_link(broken))
    told = ceilings.of(cause)
    score = scored(cause, told.realistic, _with_native(told.ideal, found.full_ms, broken), compared.effect.ratio, end)
    return {**asdict(score), "first": ceilings.listed[0].cause, "effect": asdict(compared.effect),
            "verdict": ceilings.verdict, "table": ceilings.rows(), "ablation": found.rows(),
            "notes": list(ceilings.notes), "line": f"{score}; first: {ceilings.listed[0].cause}"}


def _with_native(ideal: float, full_ms: float, broken: Recipe) -> float:
    """The ideal end where a slowed link is what is removed: the exchange itself stays, at the speed of gloo alone."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if not isinstance(group, Paced):
        return ideal
    group.wire, spent = FAST, []
    sent = torch.zeros(sum(one.numel() for one in find(broken).model().parameters() if one.requires_grad))
    for _ in range(8):
        began = time.perf_counter()
        dist.all_reduce(sent)
        spent.append(1e3 * (time.perf_counter() - began))
    return full_ms / (full_ms / ideal + statistics.median(spent))


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
                                          Options(asked.blocks, asked.steps, folder))
            if ranks.first:
                run.write(RESULT, found)


def _recipe(text: str) -> Recipe:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return recipe(Path(file.name))


if __name__ == "__main__":
    main()
