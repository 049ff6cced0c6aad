"""From host batches to device batches with their noise: the last stretch of the data path.

With `async_copy` the copy runs on a stream of its own while the step before still computes; the step's stream waits for
the copy's event, not the host. Noise is drawn for the whole global batch from (seed, step) and cut to this rank's rows,
so it doesn't depend on the number of ranks or micro-batches.

RandAugment and MixUp with data.aug_on='device' are done here, to the batches of whatever engine, and count as "other".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from lfhelpers.data import augment_device
from lfhelpers.data.order import Plan
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import Recipe
from lfhelpers.train.hooks import Hook, call
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.base import Batch, Workload


class Feed:
    """An iterator of (batch, draws) on the device, in the plan's order of steps and micro-batches."""

    def __init__(self, batches: Iterator[Batch], plan: Plan, workload: Workload, ranks: Ranks, clock: StepClock,
                 job: Recipe, start: int, hooks: Sequence[Hook] = ()) -> None:
        self._batches = batches
        self._plan = plan
        self._workload = workload
        self._ranks = ranks
        self._clock = clock
        self._seed = job.seed
        strong = bool(job.data.rand_augment or job.data.mixup)
        self._augments = job.data if strong and job.data.aug_on == "device" else None
        self._hooks = hooks
        self._slots = plan.sequence(start, job.steps)
        self._stream = torch.cuda.Stream() if job.data.async_copy and ranks.device.type == "cuda" else None
        self._generator = torch.Generator(ranks.device)
        self._draws: tuple[int, Batch] = (-1, {})
        self._taken: tuple[int, int, Batch] | None = None

    def __iter__(self) -> Iterator[tuple[Batch, Batch]]:
        return self

    def __next__(self) -> tuple[Batch, Batch]:
        step, micro, host = self._taken = self._taken or self._take()  # kept until the device has had room for it
        with self._clock.phase("host_to_device"):
            batch = self._copy(host)
        if self._augments:
            with self._clock.phase("other"):
                batch |= augment_device.apply(batch["images"], host["ids"].numpy(), self._augments, self._plan.seed,
                                              self._plan.epoch(step), step, micro)
        rows = self._plan.rows(step, micro, self._ranks.rank)
        draws = {name: value[rows] for name, value in self._step_draws(step).items()}
        self._taken = None
        call(self._hooks, Hook.batch_ready, step, batch, draws)
        return batch, draws

    def _take(self) -> tuple[int, int, Batch]:
        """(step, micro-batch, host batch) of the next one."""
        step, micro = next(self._slots)
        with self._clock.phase("data_wait"):
            host = next(self._batches)
        call(self._hooks, Hook.batch_taken, step, self._plan.rows(step, micro, self._ranks.rank), host)
        return step, micro, host

    def _copy(self, host: Batch) -> Batch:
        device = self._ranks.device
        if self._stream is None:
            return {name: value.to(device) for name, value in host.items()}
        with torch.cuda.stream(self._stream):
            batch = {name: value.to(device, non_blocking=True) for name, value in host.items()}
        current = torch.cuda.current_stream()
        current.wait_stream(self._stream)
        for value in batch.values():
            value.record_stream(current)  # the allocator must not hand the memory out before the step has used it
        return batch

    def _step_draws(self, step: int) -> Batch:
        if self._draws[0] != step:
            self._generator.manual_seed((self._seed << 32) + step)
            self._draws = step, self._workload.draws(self._plan.global_batch, self._generator)
        return self._draws[1]

