"""Trials of a distributed step: two trainers in turns, what an exchange leaves exposed, and the tuner's runs.

Everything that is compared runs in one job, in blocks that take turns; each block begins when all ranks are there and
ends when the last one is done, so a step without exchange counts as long as its slower rank took, too. Rank 0's times
are everyone's, or ranks would choose different plans and wait for each other. What is found is written to the run
folder part by part.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from lfhelpers.bench.trainer import Trainer
from lfhelpers.levers import overlap, ready, tuner
from lfhelpers.levers.buckets_sim import Gradient
from lfhelpers.levers.comm_hooks import HALVES
from lfhelpers.levers.in_place import WRAPPED, InPlace
from lfhelpers.levers.project import project
from lfhelpers.levers.tuner import Limits, Model, Verified
from lfhelpers.measure.exposed import Exposure, of_events
from lfhelpers.measure.link import Link
from lfhelpers.measure.record import Row
from lfhelpers.measure.statistics import Comparison, interleave
from lfhelpers.runs import Run
from lfhelpers.train.captured import CapturedStep
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.communication import ExposedCommunication, of_profiles
from lfhelpers.train.ranks import Ranks

RESULT = "ddp.json"
STEPS = 5
"""Steps of a block."""
PROFILED = 3
TIMED = 8
"""Steps whose exchange is measured: replays under the profiler, or ordinary ones by DDP's timers."""
TRIAL_BLOCKS = 4


@dataclass
class Bench:
    """One rank's view of the job: who it is, how many blocks to time, and what has been found so far."""

    run: Run
    ranks: Ranks
    blocks: int
    seconds: float
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._hosts = dist.new_group(backend="gloo")

    def keep(self, **found: Any) -> None:
        """Add rows (lists) and the rest (mappings and values), and write it all."""
        for name, value in found.items():
            if isinstance(value, list):
                self.found.setdefault(name, []).extend(value)
            elif isinstance(value, Mapping):
                self.found.setdefault(name, {}).update(value)
            else:
                self.found[name] = value
        if self.ranks.first:
            self.run.write(RESULT, self.found)

    def say(self, text: str) -> None:
        """A line of rank 0's log."""
        if self.ranks.first:
            print(text, flush=True)

    def compare(self, a: Trainer, b: Trainer, blocks: int | None = None) -> Comparison:
        """Blocks of both in turns; rank 0's clock counts for all."""
        mine = interleave(partial(a.run, STEPS), partial(b.run, STEPS), blocks or self.blocks, calls=1,
                          settle=self.settle)
        compared: Comparison = self.ranks.gather(mine)[0]
        self.found["aa_spread"] = max(self.found.get("aa_spread", 0.0), compared.effect.aa_spread)
        return compared

    def settle(self) -> None:
        """Wait until this rank's device has done all, and all ranks are here; no kernel of it is seen by a profiler."""
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier(group=self._hosts)


def exposed_ms(bench: Bench, trainer: Trainer) -> dict[str, Any]:
    """The exposed exchange of a trainer's steps as transfer and waiting; every rank must call it.

    Replayed steps are profiled, of ordinary ones DDP's own timers tell.
    """
    model = trainer.parts.model
    if isinstance(trainer.step, CapturedStep) or isinstance(model, InPlace):
        steps = [_profiled(bench, trainer) for _ in range(PROFILED)]
        middle = sorted(steps, key=lambda step: step.exposed_ms)[PROFILED // 2]
        return of_profiles(bench.ranks.gather(middle)) | {"source": "profiled replays"}
    assert isinstance(model, DistributedDataParallel)
    communication = ExposedCommunication(model)
    model._set_ddp_runtime_logging_sample_rate(1)
    for _ in range(TIMED):
        trainer.run(1)
        communication.after_step(1)
    model._set_ddp_runtime_logging_sample_rate(overlap.NEVER)
    return communication.result(bench.ranks)


def gradients(bench: Bench, trainer: Trainer, alone: Trainer) -> list[Gradient]:
    """When each gradient is ready, as rank 0 sees it: from a step without exchange, or a replay of small buckets."""
    if isinstance(alone.step, CapturedStep):
        trainer.rewrap((ready.FINE_MB,))
        trainer.warm_up()
        step = _profiled(bench, trainer)
        model = trainer.parts.model
        assert isinstance(model, WRAPPED)
        found = ready.replayed(overlap.buckets(model), step.collectives)
    else:
        found = ready.watched(bare(alone.parts.model), lambda: alone.run(1))
    first: list[Gradient] = bench.ranks.gather(found)[0]
    return first


class Trials:
    """The tuner's runs of one trainer's step, beside the same step without exchange."""

    def __init__(self, bench: Bench, trainer: Trainer, alone: Trainer, link: Link) -> None:
        """Tunes, and leaves `trainer` with the chosen buckets, warm. `alone` is the trainer without exchange."""
        self._bench, self._trainer, self._alone = bench, trainer, alone
        self.ran: dict[str, Verified] = {}
        self._began = time.monotonic()
        wire = 0.5 if trainer.job.ddp.hook in HALVES else 1.0
        self.choice = tuner.tune(Model(tuple(gradients(bench, trainer, alone)), link, wire), self.verify)
        self.chosen()

    def verify(self, name: str, limits: Limits) -> Verified:
        """Run a plan in turns with the step without exchange."""
        self._trainer.rewrap(limits)
        self._trainer.warm_up()
        compared = self._bench.compare(self._trainer, self._alone, TRIAL_BLOCKS)
        added = [1e3 * (a - b) / STEPS for a, b in zip(compared.a, compared.b, strict=True)]
        step = 1e3 * statistics.median(compared.a) / STEPS
        self.ran[name] = Verified(step, statistics.median(added), compared.effect)
        self._bench.say(f"buckets, {name}: {step:.2f} ms, {self.ran[name].added_ms:+.2f} by the exchange")
        return self.ran[name]

    def chosen(self) -> None:
        """Give the trainer the chosen buckets."""
        self._trainer.rewrap(self.choice.best.limits)
        self._trainer.warm_up()

    def sweep(self) -> Iterator[float]:
        """Run the other candidates too, as far as time reaches; after each the choice's step over the best one's."""
        while True:
            best = min(verified.effect.ratio for verified in self.ran.values())
            yield self.ran[self.choice.best.name].effect.ratio / best
            left = [plan for plan in self.choice.plans if plan.name not in self.ran]
            if not left or self._bench.ranks.gather(time.monotonic() - self._began)[0] > self._bench.seconds:
                return
            self.verify(left[0].name, left[0].limits)

    def told(self) -> dict[str, Any]:
        """All of it as plain values: the choice, each plan, the timeline of the chosen one, and projections from it."""
        choice, step, job = self.choice, self.ran[self.choice.best.name], self._trainer.job
        plans = [replace(plan, measured=self.ran.get(plan.name)) for plan in choice.plans]
        projected = project(choice.model, choice.best.limits, step.step_ms - step.added_ms,
                            job.batch.micro * job.batch.accumulate, measured_ms=step.step_ms)
        fitted = {name: getattr(choice.model, name) for name in ("wire", "stretch", "slowing")}
        return fitted | {
            "chosen": choice.best.name, "limits": list(choice.best.limits), "swept": len(self.ran),
            "plans": tuner.rows(plans), "gradients": [asdict(gradient) for gradient in choice.model.gradients],
            "timeline": asdict(choice.best.predicted), "projection": asdict(projected)}


def row_ms(name: str, seconds: Sequence[float]) -> dict[str, Any]:
    """A record's row of a step, from the seconds of blocks."""
    return asdict(Row.of(name, [1e3 * value / STEPS for value in seconds], "ms"))


def drop(trainer: Trainer) -> None:
    """Free what a trainer holds."""
    trainer.close()
    vars(trainer).clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _profiled(bench: Bench, trainer: Trainer) -> Exposure:
    """One profiled step of this rank, which all ranks begin together: profilers start unevenly."""
    cuda = trainer.ranks.device.type == "cuda"
    bench.settle()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU], acc_events=True) as profiled:
        bench.settle()
        trainer.run(1)
        if cuda:
            torch.cuda.synchronize()
    return of_events(profiled.events() or [], cuda)
