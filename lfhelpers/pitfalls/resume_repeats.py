"""A resumed run begins its epoch anew: some samples come twice, others not at all."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from lfhelpers.data.order import Plan
from lfhelpers.errors import LfError
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "after a resume the training loss is lower than it was, and the final quality a little worse",
    "the checkpoint holds weights, not the place in the data: the loader shuffles anew and starts from the beginning",
    "an order that is a function of (seed, epoch): the checkpoint keeps a few integers and checks them",
    "samples of the interrupted epoch seen twice or never [%]")
SAMPLES, BATCH, STOPPED = 80, 8, 5


def break_it() -> float:
    """Percent of an epoch's samples seen twice or never, with a shuffling DataLoader that is stopped half-way."""
    seen: list[int] = []
    for steps in (range(STOPPED), range(STOPPED, SAMPLES // BATCH)):
        loader: Any = DataLoader(torch.arange(SAMPLES), batch_size=BATCH, shuffle=True,  # type: ignore[arg-type]
                                 generator=torch.Generator().manual_seed(len(seen)))
        seen += [int(value) for _, batch in zip(steps, loader, strict=False) for value in batch]
    return _wrong(seen)


def detect(broken: bool = True) -> str:
    """What a checkpoint says of a plan that doesn't continue its order; empty for one that does."""
    saved = _plan(0).state(STOPPED)
    try:
        _plan(1 if broken else 0).check_state(saved)
    except LfError as error:
        return str(error)
    return ""


def fix_it() -> float:
    """The same with the plan's own order, which continues where the checkpoint was made."""
    first, second = _plan(0), _plan(0)
    start = second.check_state(first.state(STOPPED))
    return _wrong([int(sample) for plan, steps in ((first, range(STOPPED)), (second, range(start, SAMPLES // BATCH)))
                   for step in steps for sample in plan.slots(step, 0, 0)[0]])


def _plan(seed: int) -> Plan:
    return Plan(SAMPLES, world=1, micro=BATCH, accumulate=1, seed=seed)


def _wrong(seen: list[int]) -> float:
    return 100 * sum(seen.count(sample) != 1 for sample in range(SAMPLES)) / SAMPLES
