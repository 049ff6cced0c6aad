"""The recipe's gradient exchange, and what a run says of it: bytes a step, and gradients that fp16 could not carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers.comm_hooks import HALVES, Exchange, Half
from lfhelpers.levers.one_bit_adam import OneBit
from lfhelpers.levers.powersgd import PowerSgd
from lfhelpers.recipe import Recipe
from lfhelpers.recipe.exchange import whole
from lfhelpers.train.hooks import Hook
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.sharded import Shards


def choose(job: Recipe, parameters: Sequence[nn.Parameter], ranks: Ranks) -> Exchange | None:
    """The exchange that the recipe asks for, not attached to a model yet; None for a rank alone.

    parameters: the trained ones, which a sharded optimizer deals out.
    """
    if ranks.world == 1:
        return None
    ddp = job.ddp
    if ddp.shard_optimizer:
        return Shards(parameters, ranks)
    if ddp.hook in HALVES:
        return Half(ranks.world, HALVES[ddp.hook])
    if ddp.hook == "powersgd":
        return PowerSgd(ranks.world, ddp.powersgd_rank, whole(job))
    if ddp.hook == "onebit_adam":
        return OneBit(ranks.world, ranks.rank, whole(job))
    return Exchange(ranks.world)


class Watch(Hook):
    """Ends a run whose exchange spoils gradients, and adds to the summary what was sent.

    A step that was skipped is the sign, and comes with the step's other values: nothing is asked of the device before.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def step(self, row: dict[str, Any]) -> None:
        """Raise LfError where a skipped step was the exchange's doing."""
        if row["skipped"] and (trouble := self._exchange.trouble()):
            raise LfError(f"step {row['step']} was skipped, because {trouble}.")

    def run_end(self, summary: dict[str, Any]) -> None:
        """Bytes a step, as rank 0 sends them; for fp16 also what it lost."""
        summary["exchange"] = self._exchange.report()
