"""Shards, the order in which samples are read, and the engines that read them.

One manifest, one order function, many engines: every engine delivers the same samples in the same order, so that
comparing their speed is fair and changing one changes nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lfhelpers.data.manifest import Manifest
from lfhelpers.data.order import Plan
from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from lfhelpers.data.loader import Fields, Loader
    from lfhelpers.data.quarantine import Quarantine

__all__ = ["Manifest", "Plan", "make_loader", "make_plan"]


def make_plan(job: Recipe, manifest: Manifest, world: int) -> Plan:
    """The order in which `world` ranks read the dataset under this recipe. Raises LfError where none would be left."""
    return Plan(manifest.samples, world, job.batch.micro, job.batch.accumulate, job.seed, job.data.shuffle,
                job.data.last, shard_of=manifest.rows.shard, manifest=manifest.hash)


def make_loader(job: Recipe, manifest: Manifest, plan: Plan, fields: Fields,
                sample: Callable[[Mapping[str, bytes]], Mapping[str, Tensor]], rank: int, *, start: int = 0,
                stop: int, bad: Quarantine | None = None) -> Loader:
    """The recipe's engine, delivering the rank's batches of steps start..stop-1; loader.Loader says what a batch holds.

    sample: makes one sample's tensors from the bytes of `fields.others`. Call this before the process uses CUDA: worker
    processes start here. bad: skip bad samples and list them; without it the first one raises.
    Raises LfError where the shards lack a member that `fields` names, and for the engine `auto`: the launcher decides
    it before ranks start (choice.decide), since all of them must read alike.
    """
    from lfhelpers.data.ahead import FollowedLoader
    from lfhelpers.data.loader import Request

    if job.data.loader == "auto":
        raise LfError("data.loader='auto' is decided before ranks start: start the job with `lfhelpers launch`, or "
                      "name an engine.")
    manifest.need((*fields.images, *fields.others))
    if not 0 <= rank < plan.world:
        raise LfError(f"rank {rank} is not one of the plan's {plan.world} ranks; make the plan for this world size.")
    request = Request(job, manifest, plan, fields, sample, rank, start, stop, bad)
    engine: Any = importlib.import_module(f"lfhelpers.data.engines.{job.data.loader}")
    if job.data.loader == "synthetic":
        return engine.make(request)
    spread = plan.world * plan.micro * _ahead(job, request.workers())
    end = manifest.follow(plan, start, stop, spread)  # before the engine forks workers, which tell it where they are
    return FollowedLoader(lambda: engine.make(request), end) if end else engine.make(request)


def _ahead(job: Recipe, workers: int) -> int:
    """Batches that the engine may be reading at once, the one in use included."""
    data = job.data
    in_workers = workers * data.prefetch + 1
    return {"threads": data.depth + 1, "two_level": 2 * data.depth + 1,
            "dali": in_workers + workers + data.depth}.get(data.loader, in_workers)
