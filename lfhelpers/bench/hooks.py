"""Ways to exchange gradients side by side: bytes a step, time a step, and the loss, over the very same batches.

All variants are built in one job, each with a model and an optimizer of its own from the same first weights; every
batch goes through all of them, in an order that turns from step to step, so that the machine's drift hits all alike.
The price is memory for as many models, so large sizes take few variants at a time. The loss tells what compression does
to learning on one seed; whether a difference is more than chance, seeds and a control decide (quality.gates).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lfhelpers.bench.trainer import mirrored
from lfhelpers.data import make_loader, make_plan
from lfhelpers.data.manifest import Manifest
from lfhelpers.data.order import Plan
from lfhelpers.errors import LfError, nearest
from lfhelpers.launch import launch
from lfhelpers.launch.prepare import prepare
from lfhelpers.levers.compile import session
from lfhelpers.levers.frozen import Pair
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.assemble import assemble
from lfhelpers.train.captured import make_step
from lfhelpers.train.feed import Feed
from lfhelpers.train.precision import arithmetic
from lfhelpers.train.ranks import Ranks, identify, joined
from lfhelpers.workloads.base import find

VARIANTS: dict[str, dict[str, Any]] = {
    "none": {}, "bf16": {"ddp.hook": "bf16"}, "fp16": {"ddp.hook": "fp16"}, "powersgd": {"ddp.hook": "powersgd"},
    "onebit_adam": {"ddp.hook": "onebit_adam"}, "sharded": {"ddp.shard_optimizer": True}, "rounding": {},
}
BASIS, CONTROL = "none", "rounding"
"""The control is the basis over batches with their rows in reverse: without dropout it is away by rounding alone."""
TAIL = 0.1
"""Share of the steps, the last ones, over which loss, bytes and time are taken."""
_RESULT = "hooks.json"


@dataclass(frozen=True)
class HookRow:
    """One variant: bytes that a rank sends a step and milliseconds a step, both after its warm-up, and the loss."""

    name: str
    bytes_per_step: int
    mean_bytes: float
    """Over all steps, the warm-up's too."""
    step_ms: float
    """Median, of the slowest rank."""
    loss: float
    """Mean of the last tenth of the steps."""
    loss_over_none: float
    run_over_none: float = 1.0
    """The same of the mean over all steps."""


def compare(hooks: Sequence[str] = tuple(VARIANTS), steps: int = 200, job: Recipe | str = "competent", nproc: int = 2,
            **fields: Any) -> list[HookRow]:
    """Train `job` with each of VARIANTS by name on `nproc` ranks; "none", the basis, comes first in any case.

    fields: changes of the recipe for all of them, such as **{"workload.size": "tiny"}. Raises LfError for an unknown
    name, LaunchError for a variant that fails.
    """
    names = list(dict.fromkeys([BASIS, *hooks]))
    for name in names:
        if name not in VARIANTS:
            raise LfError(f"no way to exchange gradients is named '{name}'; {nearest(name, VARIANTS)}")
    base = prepare(recipe(job, **fields, steps=steps), nproc)
    run = launch(base, nproc, watch=False, module="lfhelpers.bench.hooks", args=names)
    return _rows(run.read(_RESULT))


def main() -> None:
    """What runs as each rank: `python -m lfhelpers.bench.hooks RUN_FOLDER NAMES...`; rank 0 writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    run = Run(options.run)
    job, ranks = run.recipe, identify(run.recipe.device)
    ranks.take_device()
    manifest, workload = Manifest.load(str(job.data.path), cache_gb=job.data.cache_gb), find(job)
    plan = make_plan(job, manifest, ranks.world)
    loader = make_loader(job, manifest, plan, workload.fields, workload.sample, ranks.rank, start=0, stop=job.steps)
    with loader, joined(ranks, job.ddp.slow_link), arithmetic(job.precision.mode, ranks.device), ExitStack() as stack:
        feed = Feed(iter(loader), plan, workload, ranks, StepClock(ranks.device), job, 0)
        seen = ranks.gather(_train(job, options.names, ranks, plan, feed, stack))
        if ranks.first:
            run.write(_RESULT, seen)


def _train(job: Recipe, names: Sequence[str], ranks: Ranks, plan: Plan, feed: Feed, stack: ExitStack) -> dict[str, Any]:
    """All steps of all variants; what this rank saw, by name."""
    sides = {name: _Side(job.with_(**VARIANTS[name]), ranks, stack) for name in names}
    for step in tqdm(range(job.steps), desc="hooks", disable=None):
        pairs = [next(feed) for _ in range(plan.micro_batches(step))]
        turn = step % len(sides)
        for name in [*names[turn:], *names[:turn]]:
            sides[name].run(step, mirrored(pairs) if name == CONTROL else pairs)
    return {name: vars(side.seen) for name, side in sides.items()}


@dataclass
class _Seen:
    """What one rank saw of one variant, step by step."""

    losses: list[float]
    ms: list[float]
    sent: list[int]


class _Side:
    """One variant in this rank."""

    def __init__(self, job: Recipe, ranks: Ranks, stack: ExitStack) -> None:
        workload = find(job)
        self._ranks = ranks
        self._job = job
        self._compilation = stack.enter_context(session(job, ranks.device, ranks.first))
        self._parts = assemble(job, ranks, workload, self._compilation)
        self._parts.model.train()
        self._step = make_step(job, workload, self._parts.model, self._parts.optimizer, self._parts.precision, ranks,
                               StepClock(ranks.device))
        self.seen = _Seen([], [], [])

    def run(self, step: int, pairs: Sequence[Pair]) -> None:
        """One step, timed from when all ranks are here to when the device is done."""
        torch.manual_seed((self._job.seed << 32) + self._ranks.world * step + self._ranks.rank)  # dropout alike for all
        self._compilation.before_step()
        self._wait()
        began = time.perf_counter()
        values = self._step(step, _copies(pairs), len(pairs))
        loss = float(values[0])
        self._wait(barrier=False)
        self.seen.ms.append(1e3 * (time.perf_counter() - began))
        self._compilation.after_step(step + 1)
        self.seen.losses.append(loss)
        exchange = self._parts.exchange
        self.seen.sent.append(exchange.bytes_per_step if exchange else 0)

    def _wait(self, barrier: bool = True) -> None:
        if barrier:
            self._ranks.barrier()
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()


def _copies(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """The pairs in dicts of their own: a step may replace what is in them."""
    return ((dict(batch), dict(draws)) for batch, draws in pairs)


def _rows(seen: Sequence[Mapping[str, Any]]) -> list[HookRow]:
    """From what every rank saw."""
    rows = []
    for name, first in seen[0].items():
        tail = max(1, round(TAIL * len(first["losses"])))
        loss, basis = (statistics.fmean(seen[0][which]["losses"][-tail:]) for which in (name, BASIS))
        whole, whole_basis = (statistics.fmean(seen[0][which]["losses"]) for which in (name, BASIS))
        rows.append(HookRow(name, first["sent"][-1], statistics.fmean(first["sent"]),
                            max(statistics.median(rank[name]["ms"][-tail:]) for rank in seen), loss, loss / basis,
                            whole / whole_basis))
    return rows


if __name__ == "__main__":
    main()
