"""A recipe's step outside a run: built as the training loop builds it, on batches of the caller's choice.

What is timed with it is the step, without logging; by default also without data, on random batches that lie on the
device already. Benchmarks and the ablation of a step stand on it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from lfhelpers.data.manifest import Manifest
from lfhelpers.errors import LfError
from lfhelpers.levers import overlap
from lfhelpers.levers.compile import session
from lfhelpers.levers.frozen import Pair
from lfhelpers.measure import formats
from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import Recipe
from lfhelpers.train.assemble import assemble, stream
from lfhelpers.train.captured import CapturedStep, make_step
from lfhelpers.train.checkpoint import bare
from lfhelpers.train.precision import arithmetic, deterministic
from lfhelpers.train.ranks import Ranks, identify
from lfhelpers.train.step import Step
from lfhelpers.workloads.base import Batch, Making, Workload, find

BATCHES = 3
"""Different batches that take turns, so that no cache knows the next one."""
Stepping = Callable[[int, Iterator[Pair], int], torch.Tensor]
"""What a step is called like: (number, device pairs, micro-batches) -> VALUES."""


class Trainer:
    """Builds the recipe's model and step; `run` makes steps, `close` frees what it can."""

    def __init__(self, job: Recipe, ranks: Ranks | None = None, pairs: Iterator[Pair] | None = None) -> None:
        """ranks: who this process is, by default as torchrun says; with more than one the group must stand.

        pairs: device batches with their draws; by default `endless`.
        """
        self.ranks = ranks or identify(job.device)
        self.job = job = formats.settled(job, self.ranks.device.type)
        self.workload = find(job)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(arithmetic(job.precision.mode, self.ranks.device))
        self._stack.enter_context(deterministic(job.precision.deterministic))
        self.compilation = self._stack.enter_context(session(job, self.ranks.device, self.ranks.first))
        self._stream = stream(job, self.ranks)
        with self._stream:
            self.parts = assemble(job, self.ranks, self.workload, self.compilation)
            self.parts.model.train()
            self.pairs = pairs if pairs is not None else endless(self.workload, job, self.ranks.device)
            self.step = self._made()
        self.done = 0

    def rewrap(self, limits: Sequence[float]) -> None:
        """Wrap the model in DDP anew, with buckets of these limits in MiB.

        Weights, the optimizer's state and compiled blocks go on; a CUDA graph is recorded again.
        """
        self.job = self.job.with_(**{"ddp.bucket_mb": None, "ddp.bucket_list_mb": tuple(limits)})
        with self.ordered():
            model = bare(self.parts.model)
            for parameter in model.parameters():
                parameter.grad = None  # a view into the old buckets
            if self.ranks.device.type == "cuda":
                torch.cuda.synchronize()  # a replay may be on its way
            del self.step
            self.parts = self.parts._replace(model=model)
            gc.collect()  # the old DDP's hooks go with it
            self.parts = self.parts._replace(model=overlap.wrap(self.job, model, self.ranks.device))
            if self.parts.exchange is not None:
                self.parts.exchange.attach(self.parts.model)
            self.step = self._made()

    def resize(self, micro: int) -> None:
        """Take random micro-batches of another size from now on; weights and the optimizer's state go on."""
        self.job = self.job.with_(**{"batch.micro": micro})
        with self.ordered():
            self.pairs = endless(self.workload, self.job, self.ranks.device)
            self.step = self._made()

    def run(self, steps: int, step: Stepping | None = None, pairs: Iterator[Pair] | None = None) -> torch.Tensor:
        """Make steps without waiting for the device; VALUES of the last one, until the next call.

        step and pairs: another step than the recipe's, or other batches, for this call.
        """
        with self.ordered():
            for _ in range(steps):
                self.compilation.before_step()
                values = (step or self.step)(self.done, pairs if pairs is not None else self.pairs,
                                             self.job.batch.accumulate)
                self.done += 1
                self.compilation.after_step(self.done)
        return values

    def _made(self) -> Step | CapturedStep:
        return make_step(self.job, self.workload, self.parts.model, self.parts.optimizer, self.parts.precision,
                         self.ranks, StepClock(self.ranks.device))

    @contextlib.contextmanager
    def ordered(self) -> Iterator[None]:
        """The trainer's stream, after what the caller's has been given and before what it will be."""
        if self.ranks.device.type == "cpu":
            yield
            return
        outer = torch.cuda.current_stream()
        with self._stream:
            inner = torch.cuda.current_stream()
            inner.wait_stream(outer)
            yield
        outer.wait_stream(inner)

    def warm_up(self) -> None:
        """Steps until everything lazy has happened. Raises LfError where a part of the recipe is not in force."""
        self.run(self.job.untimed(self.ranks.device.type) + 2)
        compiled = self.compilation.report()
        if compiled["state"] not in ("on", "none"):
            raise LfError(f"compilation is {compiled['state']}: {compiled['reason']}")
        if isinstance(self.step, CapturedStep) and self.step.graphs.obstacle:
            raise LfError(f"no CUDA graph: {self.step.graphs.obstacle}")

    def close(self) -> None:
        """Put back the process's settings."""
        self._stack.close()


def endless(workload: Workload, job: Recipe, device: torch.device) -> Iterator[Pair]:
    """The same few random pairs again and again: images of noise, all else as the workload's samples are."""
    generator = torch.Generator(device).manual_seed(job.seed)
    pairs = [(batch(workload, job, place, device), workload.draws(job.batch.micro, generator))
             for place in range(BATCHES)]
    return ((dict(one), dict(other)) for one, other in itertools.cycle(pairs))


def batch(workload: Workload, job: Recipe, place: int, device: torch.device, different: int = 8) -> Batch:
    """Batch number `place` on the device: so many different samples in turn, under images of noise.

    Images are uint8 [B, V, P, P, 3].
    """
    members = _members(workload, job)
    made = [workload.sample(members(different * place + index)) for index in range(min(different, job.batch.micro))]
    rows = [made[row % len(made)] for row in range(job.batch.micro)]
    size = workload.fields.size
    noise = torch.Generator().manual_seed(place)
    images = torch.randint(256, (job.batch.micro, len(workload.fields.images), size, size, 3), dtype=torch.uint8,
                           generator=noise)
    tensors = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    tensors |= {"images": images, "ids": torch.arange(job.batch.micro), "valid": torch.ones(job.batch.micro)}
    return {name: value.to(device) for name, value in tensors.items()}


def _members(workload: Workload, job: Recipe) -> Callable[[int], Mapping[str, bytes]]:
    """What gives a sample's members: the workload, its shards, or the tabletop world, without which none is needed."""
    if isinstance(workload, Making):
        return lambda index: workload.generate(index % workload.samples)
    foreign = type(workload).__module__.partition(".")[0] != "lfhelpers"
    if foreign and job.data.path is not None:
        manifest = Manifest.load(job.data.path, "none", cache_gb=job.data.cache_gb)
        return lambda index: manifest.read(index % manifest.samples, workload.fields.others)
    from lfhelpers.workloads.vla.tabletop.dataset import moment, unseen

    return lambda index: unseen(moment(job.seed, index))
