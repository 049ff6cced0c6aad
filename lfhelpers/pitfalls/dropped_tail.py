"""The last window of an epoch has fewer micro-batches than the others: it is dropped, or leaks into the next."""

from __future__ import annotations

from lfhelpers.data.order import Plan
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "an epoch has fewer steps than it should, and rare samples are never learnt from",
    "`if (i + 1) % accumulate == 0: step()` leaves the rest without a step",
    "the short window is a step of its own, divided by its true weight",
    "micro-batches of an epoch of ten that no step learns from [%]")
MICRO_BATCHES, ACCUMULATE, SIZE = 10, 4, 8


def break_it() -> float:
    """Percent of micro-batches without a step, in the usual loop."""
    return 100 * (1 - _learnt(plan=False) / MICRO_BATCHES)


def detect(broken: bool = True) -> str:
    """What the counts say; empty where all are learnt from."""
    lost = MICRO_BATCHES - _learnt(plan=not broken)
    return f"{lost} micro-batches of an epoch end in no step" if lost else ""


def fix_it() -> float:
    """The same by lfhelpers' plan."""
    return 100 * (1 - _learnt(plan=True) / MICRO_BATCHES)


def _learnt(plan: bool) -> int:
    if plan:
        order = Plan(MICRO_BATCHES * SIZE, world=1, micro=SIZE, accumulate=ACCUMULATE, seed=0)
        return sum(order.micro_batches(step) for step in range(order.steps_per_epoch))
    learnt = waiting = 0
    for number in range(MICRO_BATCHES):
        waiting += 1
        if (number + 1) % ACCUMULATE == 0:
            learnt, waiting = learnt + waiting, 0
    return learnt
