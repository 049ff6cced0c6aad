"""What the detectors that are on in every run cost: steps with all of them, and without, in blocks that take turns.

Steps are made as the training loop makes them, with its feed, clock and recorder, on the very same model; only who
listens changes from block to block. So their work counts as a run pays it: beside the device's on a GPU, and with what
it does to the host's caches and threads. Two things a single process can't have are stood in for. The straggler is told
that there are two ranks, so that it keeps and leaves its rows; what it exchanges comes after the last step. Gradients
are compared between ranks in the first three steps alone, which are warm-up anywhere.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

import torch

from lfhelpers.data.order import Plan
from lfhelpers.measure import hardware
from lfhelpers.measure.clock import StepClock
from lfhelpers.measure.statistics import Comparison, interleave
from lfhelpers.measure.system import Monitor
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.agreement import Agreement
from lfhelpers.train.captured import make_step
from lfhelpers.train.feed import Feed
from lfhelpers.train.guard import Guard
from lfhelpers.train.hooks import Hook, call
from lfhelpers.train.order_hash import OrderHash
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.recorder import Recorder
from lfhelpers.train.sentinel import Sentinel
from lfhelpers.train.straggler import Straggler
from lfhelpers.train.trainer import BATCHES, Trainer, batch

BLOCKS, STEPS = 12, 12
SIZES = {"cuda": ("workload.size=full",), "cpu": ("workload.size=tiny", "batch.micro=2")}
STARTS = 0.1
"""Seconds in which the monitor's thread looks for processes, which a run pays once."""


def cost(blocks: int = BLOCKS, steps: int = STEPS) -> Comparison:
    """`competent` without detectors (A) and with them (B), in seconds for so many steps.

    Of full size where there is a GPU, else tiny with small batches. The share that they take is 1 / effect.ratio - 1.
    """
    given = SIZES[hardware.device()[0]]
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(recipe("competent", *given, "log.skip=2", "steps=100000"), Run(Path(folder)))
        compared = interleave(lambda: loop.block(steps, watched=False), lambda: loop.block(steps, watched=True), blocks,
                              calls=1, clock=lambda: loop.seconds)
        loop.close()
    return compared


class Loop:
    """The training loop's steps on batches that lie ready, with detectors that can be sent away and called back."""

    def __init__(self, job: Recipe, run: Run) -> None:
        self.trainer = made = Trainer(job)
        self.seconds = 0.0
        """Time of all blocks so far."""
        job, ranks, parts = made.job, made.ranks, made.parts
        hosts = [batch(made.workload, job, place, torch.device("cpu")) for place in range(BATCHES)]
        self._plan = Plan(job.steps * job.batch.micro * job.batch.accumulate, 1, job.batch.micro, job.batch.accumulate,
                          job.seed)
        self._detectors: list[Hook] = [
            Guard(job, run, made.workload, parts.precision, ranks, made.compilation.eager), Agreement(job, ranks),
            Sentinel(ranks, compilation=made.compilation), OrderHash(ranks), Straggler(Ranks(0, 2, ranks.device))]
        self._hooks = list(self._detectors)
        self._clock = StepClock(ranks.device)
        self._feed = Feed((dict(host) for host in itertools.cycle(hosts)), self._plan, made.workload, ranks,
                          self._clock, job, 0, self._hooks)
        self._recorder = Recorder(run, ranks, self._clock, self._hooks)
        self._step = make_step(job, made.workload, parts.model, parts.optimizer, parts.precision, ranks, self._clock,
                               self._hooks)
        self._done = 0
        call(self._hooks, Hook.run_start, job, run, parts.model)

    def block(self, steps: int, watched: bool) -> None:
        """So many steps, with detectors and the monitor's thread or without, until the device is done with them."""
        self._hooks[:] = self._detectors if watched else []
        monitor = Monitor().start() if watched else None
        time.sleep(STARTS)
        began = time.perf_counter()
        with self.trainer.ordered():
            for _ in range(steps):
                self._one()
            self._recorder.collect(wait=True)
        self.seconds += time.perf_counter() - began
        if monitor is not None:
            monitor.stop()

    def close(self) -> None:
        """End the detectors' threads, and put back the process's settings."""
        call(self._detectors, Hook.close)
        self.trainer.close()

    def _one(self) -> None:
        """As train.loop makes a step."""
        index, self._done = self._done, self._done + 1
        self._clock.begin()
        self.trainer.compilation.before_step()
        values = self._step(index, self._feed, self._plan.micro_batches(index))
        self._clock.end(values, step=self._done, epoch=0, samples=self._plan.real_samples(index),
                        at=time.perf_counter(), probe=False, graphs=0, exposed=None)
        call(self._hooks, Hook.step_end, index)
        self.trainer.compilation.after_step(self._done)
        self._recorder.collect()
