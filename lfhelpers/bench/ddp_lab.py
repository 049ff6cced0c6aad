"""Data parallelism taken apart, for a notebook: a small job exchanges by hand, counts messages, and tunes its buckets.

Everything runs over one link, which is slowed and declared, so that what costs nanoseconds between two processes of a
machine can be seen. Its figures show mechanisms; what a lever wins where it matters, `lfhelpers bench ddp` measures.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.bench.ddp_trials import Bench, Trials
from lfhelpers.bench.trainer import Trainer, batch
from lfhelpers.launch import launch
from lfhelpers.levers import naive_ddp, overlap, slow_link
from lfhelpers.levers.buckets_sim import Gradient
from lfhelpers.levers.comm_hooks import Exchange, Future
from lfhelpers.levers.in_place import InPlace
from lfhelpers.levers.project import Projection, project
from lfhelpers.levers.tuner import DEFAULT, Model
from lfhelpers.measure.link import Link
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.agreement import dry_run
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks, identify, joined
from lfhelpers.workloads.base import find

RESULT = "ddp.json"
MICRO_BATCHES = 4
NO_SYNC = {"nothing": (False, False), "forward and backward": (True, True), "backward alone": (False, True),
           "forward alone": (True, False)}
"""What `no_sync` may cover of all micro-batches but the last: (forward, backward)."""
BASIS = "DistributedDataParallel"
Loss = Callable[[nn.Module], Tensor]


def explore(job: Recipe | str, nproc: int = 2, rounds: int = 5, **fields: Any) -> dict[str, Any]:
    """What `nproc` ranks find with `job`, which must declare a slow link; fields: changes of the recipe.

    link: a measure.link.Link as plain values. ways: a row for each way to exchange (`by_hand`). counted: a row for each
    place of no_sync. tuner: what ddp_trials.Trials tells. Raises LaunchError where a rank fails.
    """
    base = recipe(job, **fields, **{"data.loader": "synthetic", "log.skip": 2})
    run = launch(base, nproc, watch=False, module="lfhelpers.bench.ddp_lab", args=[str(rounds)])
    found: dict[str, Any] = run.read(RESULT)
    return found


def recalled(told: Mapping[str, Any], link: Mapping[str, Any]) -> Model:
    """The fitted model behind what a tuner told (ddp_trials.Trials.told), over the link that goes with it."""
    return Model(tuple(Gradient(**gradient) for gradient in told["gradients"]), Link.from_dict(link), told["wire"],
                 told["slowing"], told["stretch"])


def projections(told: Mapping[str, Any], link: Mapping[str, Any]) -> dict[str, Projection]:
    """What a tuner told, projected to more GPUs: torch's default buckets, and the chosen ones with their check."""
    model, first, check = recalled(told, link), told["projection"]["rows"][0], told["projection"]["check"]
    alone = first["efficiency"] * first["step_ms"]
    samples = round(first["samples_per_s"] * first["step_ms"] / 1e3 / first["gpus"])
    return {DEFAULT: project(model, (), alone, samples),
            "chosen buckets": project(model, tuple(told["limits"]), alone, samples,
                                      measured_ms=first["step_ms"] / check if check else None)}


def main() -> None:
    """What runs as each rank: `python -m lfhelpers.bench.ddp_lab RUN_FOLDER ROUNDS`; rank 0 writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("rounds", type=int)
    options = parser.parse_args()
    run = Run(options.run)
    job, ranks = run.recipe, identify(run.recipe.device)
    ranks.take_device()
    with joined(ranks, job.ddp.slow_link):
        bench = Bench(run, ranks, options.rounds, 0.0)
        link = Link.from_dict(slow_link.measure(job.ddp.slow_link, ranks.device)["measured"])
        bench.keep(link=link.as_dict())
        model, loss = _model(job, ranks)
        bench.keep(ways=by_hand(bench, model, loss, options.rounds))
        bench.keep(counted=counted(job, ranks, model, loss))
        pair = Trainer(job, ranks), Trainer(job, ranks.alone())
        for trainer in pair:
            trainer.warm_up()
        bench.keep(tuner=Trials(bench, *pair, link).told())


def by_hand(bench: Bench, model: nn.Module, loss: Loss, rounds: int) -> list[dict[str, Any]]:
    """Steps without an update, in turns: DDP, every tensor after backward, buckets that leave during backward.

    Of each: its messages a step, median milliseconds of the slowest rank, and by which share of the largest gradient
    its gradients are off DDP's.
    """
    steps = dict(_ways(bench.run.recipe, bench.ranks, model, loss))
    times: dict[str, list[float]] = {name: [] for name in steps}
    sent = dict.fromkeys(steps, 0)
    for turn in range(rounds + 2):  # DDP lays its buckets out anew after the first
        for name in list(steps)[::1 - 2 * (turn % 2)]:
            bench.settle()
            began = time.perf_counter()
            sent[name] = steps[name][1]()
            times[name].append(1e3 * (time.perf_counter() - began))
    everyone = bench.ranks.gather(times)
    slowest = {name: list(map(max, zip(*(each[name] for each in everyone), strict=True))) for name in steps}
    return [{"way": name, "messages": sent[name], "step_ms": statistics.median(slowest[name][2:]),
             "off": _apart(trained, steps[BASIS][0])} for name, (trained, _) in steps.items()]


def counted(job: Recipe, ranks: Ranks, model: nn.Module, loss: Loss) -> list[dict[str, Any]]:
    """Messages of a step of MICRO_BATCHES for each place of `no_sync`, and how far gradients are off the first's."""
    rows: list[dict[str, Any]] = []
    first: nn.Module | None = None
    for name, places in NO_SYNC.items():
        ddp = overlap.wrap(job, copy.deepcopy(model), ranks.device)
        counting = _Counting(ranks.world)
        counting.attach(ddp)
        for _ in range(2):  # buckets are laid out anew after the first step
            counting.messages = 0
            _zero(ddp)
            for micro in range(MICRO_BATCHES):
                forward, backward = (place and micro < MICRO_BATCHES - 1 for place in places)
                with _quiet(ddp, forward):
                    found = loss(ddp)
                with _quiet(ddp, backward):
                    found.backward()
        first = first or ddp
        rows.append({"covers": name, "messages": counting.messages, "buckets": len(overlap.buckets(ddp)),
                     "off": _apart(ddp, first)})
    return rows


class _Counting(Exchange):
    """DDP's own exchange, its messages counted."""

    messages = 0

    def average(self, bucket: dist.GradBucket) -> Future:
        """Average one bucket over the ranks: DDP's communication hook."""
        self.messages += 1
        return super().average(bucket)


def _model(job: Recipe, ranks: Ranks) -> tuple[nn.Module, Loss]:
    """A model, alike on all ranks, and its loss on a batch of this rank's own."""
    torch.manual_seed(job.seed)
    workload, precision = find(job), Precision(job.precision, ranks.device)
    model = workload.model().to(ranks.device)
    mine = batch(workload, job, ranks.rank, ranks.device)
    total = dry_run(workload, precision, mine, job.batch.micro, ranks.device)
    return model, lambda model: total(model) / job.batch.micro


def _ways(job: Recipe, ranks: Ranks, model: nn.Module,
          loss: Loss) -> Iterator[tuple[str, tuple[nn.Module, Callable[[], int]]]]:
    """(name, (model, one step of it)); a step returns its messages."""
    ddp, slow, ours = overlap.wrap(job, copy.deepcopy(model), ranks.device), copy.deepcopy(model), copy.deepcopy(model)
    counting = _Counting(ranks.world)
    counting.attach(ddp)
    buckets = naive_ddp.Buckets(ours, bucket_mb=0.5)

    def with_ddp() -> int:
        counting.messages = 0
        _zero(ddp)
        loss(ddp).backward()
        return counting.messages

    def after_backward() -> int:
        _zero(slow)
        loss(slow).backward()
        return naive_ddp.average_after_backward(slow.parameters())

    def during_backward() -> int:
        before = buckets.sent
        _zero(ours)
        loss(ours).backward()
        buckets.wait()
        return buckets.sent - before

    yield "each tensor after backward", (slow, after_backward)
    yield "buckets during backward", (ours, during_backward)
    yield BASIS, (ddp, with_ddp)


def _quiet(ddp: DistributedDataParallel | InPlace, covered: bool) -> contextlib.AbstractContextManager[None]:
    return ddp.no_sync() if covered else contextlib.nullcontext()


def _zero(model: nn.Module) -> None:
    """In place: gradients by hand lie in their buckets."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def _apart(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of two models' gradients, as a share of the largest gradient."""
    flat = [torch.cat([parameter.grad.flatten() for parameter in each.parameters() if parameter.grad is not None])
            for each in (model, other)]
    return float((flat[0] - flat[1]).abs().max() / flat[1].abs().max())


if __name__ == "__main__":
    main()
