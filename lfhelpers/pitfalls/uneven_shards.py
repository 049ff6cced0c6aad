"""Fewer shards than ranks: some ranks have no data, and the others wait for them in the exchange for ever."""

from __future__ import annotations

from lfhelpers.data.order import Plan
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "the job hangs in an all-reduce at the end of an epoch, or a rank reports an empty loader",
    "whole shards are dealt out to ranks, and their number doesn't divide",
    "deal out samples, not shards: every rank then has as many micro-batches as any other",
    "micro-batches that the luckiest rank has more than the poorest")
SHARDS, EACH, RANKS, MICRO = 3, 10, 4, 2


def break_it() -> float:
    """Difference in micro-batches where shard i goes to rank i modulo 4, as loaders split by node."""
    return float(max(_by_shard()) - min(_by_shard()))


def detect(broken: bool = True) -> str:
    """What the counts of all ranks say, which must be equal before step 0."""
    counts = _by_shard() if broken else _by_plan()
    return "" if len(set(counts)) == 1 else f"ranks have {', '.join(map(str, counts))} micro-batches: all would wait"


def fix_it() -> float:
    """The same by the plan, whose last batch is padded with samples that count nothing."""
    return float(max(_by_plan()) - min(_by_plan()))


def _by_shard() -> list[int]:
    dealt = [list(range(SHARDS))[rank::RANKS] for rank in range(RANKS)]
    return [-(-len(shards) * EACH // MICRO) for shards in dealt]


def _by_plan() -> list[int]:
    plan = Plan(SHARDS * EACH, world=RANKS, micro=MICRO, accumulate=1, seed=0)
    sequence = list(plan.sequence(0, plan.steps_per_epoch))
    return [sum(len(plan.slots(step, micro, rank)[0]) == MICRO for step, micro in sequence) for rank in range(RANKS)]
