"""What the tests of remote datasets share: small jobs, what they read, and waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

from lfhelpers.data import Manifest, make_loader, make_plan
from lfhelpers.data.download import Patience
from lfhelpers.recipe import Recipe, recipe
from tests.data.toy_shards import ToyFields, tensors

QUICK = Patience(tries=4, first=0.01, longest=0.05, stall=60, seed=1)


def job(*overrides: str) -> Recipe:
    return recipe("competent", "data.loader=webdataset", "data.workers=0", "batch.micro=4", *overrides, device="cpu")


def ids(toy: Recipe, dataset: Manifest, rank: int = 0, world: int = 1, epochs: int = 1) -> list[int]:
    """The samples that one rank reads, as the numbers that lie in them."""
    plan = make_plan(toy, dataset, world)
    with make_loader(toy, dataset, plan, ToyFields(), tensors, rank, stop=epochs * plan.steps_per_epoch) as loader:
        return [number for batch in loader for number in batch["number"][batch["valid"] == 1].tolist()]


def wait_for(condition: Callable[[], object]) -> None:
    """Bounded by pytest's own time limit: on a busy machine anything may take long."""
    while not condition():
        time.sleep(0.01)
