"""What does each part of a step cost? Take it away, and time what is left: the real step, no profiler, no model of it.

Blocks of all variants take turns, so drift hits all alike, and what a variant saves is taken from neighbouring blocks.
The figures hold what a trace can't see: how parts slow each other down. The price is some hundred steps, and that only
what can be taken away is measured; where in the step the time goes is a trace's to tell (diagnose.trace).

The model is handed back as it was (diagnose.untouched). Works on any workload, on CPU and GPU, on one rank or several.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from torch.profiler import ProfilerActivity, profile, schedule

from lfhelpers.data import make_loader, make_plan
from lfhelpers.data.loader import MIN_WORKERS
from lfhelpers.data.manifest import Manifest
from lfhelpers.diagnose.ablation import CACHED, FULL, LEAST_STEPS, MEANING, Ablation
from lfhelpers.diagnose.aside import fused_ms, observer_us, wait
from lfhelpers.diagnose.untouched import untouched
from lfhelpers.diagnose.variants import Variant, answered, endless, variants
from lfhelpers.errors import LfError
from lfhelpers.measure import chrome_trace, hardware
from lfhelpers.measure.clock import StepClock
from lfhelpers.measure.statistics import Comparison, effect
from lfhelpers.recipe import Recipe
from lfhelpers.train.feed import Feed
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.trainer import Trainer
from lfhelpers.workloads.base import find

HELD = 3
"""Batches that are used again and again in place of the loader's."""
LOADS = 6
"""Batches by which the loader alone is timed."""
QUIET = 2.0
"""Seconds at most that a block waits for the loader's workers to have filled their queue, so that none disturbs it."""
TRACED = 3


@dataclass(frozen=True)
class Options:
    """How much to measure: blocks of each variant, steps a block, and whether three steps are traced at the end."""

    blocks: int = 6
    steps: int = 4
    trace: Path | None = None


def measure(job: Recipe, ranks: Ranks, options: Options = Options(), *,  # frozen
            only: Sequence[str] | None = None) -> Ablation:
    """Ablate the recipe's step on this rank; every rank must call it, and all get the result of all.

    data.path must name shards. The process must not have used CUDA: the loader's workers are forked from it. The
    process group must stand where there is more than one rank. only: the variants to time beside the full step.

    Raises LfError for fewer than 10 steady steps, and where the model isn't as it was afterwards.
    """
    _enough(options)
    if unknown := set(only or ()) - set(MEANING):
        raise LfError(f"an ablation knows no variant '{sorted(unknown)[0]}'; there are {', '.join(MEANING)}.")
    with steady([job], ranks) as (bench,), untouched(bench.trainer.parts, ranks.device) as proof:
        found = bench.ablate(options, only)
    return replace(found, state={"before": proof.before, "after": str(proof.after)})


def compare(a: Recipe, b: Recipe, ranks: Ranks, options: Options = Options(), *,
            before: Callable[[int], object] = lambda side: None) -> Comparison:
    """The whole step of two recipes, loaders included, in blocks that take turns: seconds a step, and the effect.

    before: is called with 0 or 1 before each block of a or b. Requirements and errors are those of `measure`.
    """
    _enough(options)
    with steady([a, b], ranks) as benches:
        times: tuple[list[float], list[float]] = ([], [])
        for side, bench in enumerate(benches):
            before(side)
            bench.ready(options)
        for block in range(options.blocks):
            for side in (0, 1) if block % 2 == 0 else (1, 0):
                before(side)
                times[side].append(benches[side].whole() / 1e3)
        slowest = [[max(of_ranks) for of_ranks in zip(*ranks.gather(side), strict=True)] for side in times]
    return Comparison(tuple(slowest[0]), tuple(slowest[1]), effect(slowest[0], slowest[1]))


@contextlib.contextmanager
def steady(jobs: Sequence[Recipe], ranks: Ranks) -> Iterator[list[Bench]]:
    """A bench for each recipe; all loaders' workers are forked before the first model is built."""
    with contextlib.ExitStack() as stack:
        feeds = []
        for job in jobs:
            job = job.with_(steps=10**6, **{"log.probe": False, "log.profile": False})
            workload, manifest = find(job), Manifest.load(str(job.data.path), cache_gb=job.data.cache_gb)
            plan = make_plan(job, manifest, ranks.world)
            loader = stack.enter_context(make_loader(job, manifest, plan, workload.fields, workload.sample, ranks.rank,
                                                     stop=job.steps))
            feeds.append((job, loader, plan, workload))
        benches = []
        for job, loader, plan, workload in feeds:
            feed = Feed(iter(loader), plan, workload, ranks, StepClock(ranks.device), job, 0)
            trainer = Trainer(job, ranks, feed)
            stack.callback(trainer.close)
            benches.append(Bench(trainer, feed))
        yield benches


def _enough(options: Options) -> None:
    if options.blocks * options.steps < LEAST_STEPS:
        raise LfError(f"an ablation needs {LEAST_STEPS} steady steps of each variant, and {options.blocks} blocks of "
                      f"{options.steps} are {options.blocks * options.steps}; raise blocks or steps.")


class Bench:
    """One rank's steps of one recipe, with its loader, to be timed in blocks."""

    def __init__(self, trainer: Trainer, feed: Feed) -> None:
        self.trainer, self.feed = trainer, feed
        self.job, self.ranks = trainer.job, trainer.ranks
        workers = 0 if self.job.data.loader == "synthetic" else self.job.data.workers or MIN_WORKERS
        self.ahead = workers * self.job.data.prefetch
        """Batches that the loader's workers prepare while nobody asks for any."""
        self._least = math.inf  # the shortest block on cached batches, in ms

    def ready(self, options: Options) -> None:
        """Warm up, and time the loader alone and the step on cached batches: what blocks of the whole step need."""
        self.options = options
        self.trainer.warm_up()
        self.held = [next(self.feed) for _ in range(max(HELD, self.job.batch.accumulate))]
        self.load_ms, self.load_cpu_ms = self._loading()
        self._block(Variant(CACHED, self.trainer.step, endless(self.held)))

    def whole(self) -> float:
        """Milliseconds of a step as it is trained, from one block."""
        return self._block(Variant(FULL, self.trainer.step, self.feed))[0]

    def ablate(self, options: Options, only: Sequence[str] | None = None) -> Ablation:
        """All variants in blocks that take turns, and a trace where one is asked for."""
        self.ready(options)
        listed = self._listed(only)
        times: dict[str, list[float]] = {variant.name: [] for variant in listed}
        cpu_ms: list[float] = []
        for block in range(options.blocks):
            for variant in listed if block % 2 == 0 else listed[::-1]:
                spent, cpu = self._block(variant)
                times[variant.name].append(spent)
                cpu_ms += [cpu] if variant.name == CACHED else []
        observer = self._trace(options.trace) if options.trace is not None else 0.0
        mine = times, self.load_ms, self.load_cpu_ms, statistics.median(cpu_ms or [0.0])
        of_ranks = self.ranks.gather(mine)
        return Ablation(
            self.job.name, self.ranks.device.type, hardware.title(self.ranks.device.type), self.job.batch.micro,
            self.job.batch.accumulate, options.blocks * options.steps,
            {name: tuple(tuple(item[0][name]) for item in of_ranks) for name in times},
            max(item[1] for item in of_ranks), max(item[2] for item in of_ranks), max(item[3] for item in of_ranks),
            fused_ms(self.trainer), observer, hardware.usable_cores(), {})

    def _listed(self, only: Sequence[str] | None) -> list[Variant]:
        """The variants, each warm."""
        listed = variants(self.trainer, self.feed, self.held)
        cuda = self.ranks.device.type == "cuda"
        listed += [answered(self.trainer, self.held)] if cuda else []
        listed = [one for one in listed if one.name == FULL or only is None or one.name in only]
        for variant in listed:
            self._steps(variant, 0 if variant.name == FULL else self.job.untimed("cuda") + 2 if cuda else 2)
        return listed

    def _block(self, variant: Variant) -> tuple[float, float]:
        """Milliseconds of a step in one block, by this rank's clock and of its CPU time; all ranks begin together.

        A loader that is slower than the step has nothing lying ready, so what it has prepared meanwhile is dropped.
        """
        full, load_ms = variant.name == FULL, self.load_ms
        for _ in range(self.ahead if full and load_ms * self.job.batch.accumulate > self._least else 0):
            next(self.feed)
        self._steps(variant, 1)
        self._settle()
        self.ranks.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        self._steps(variant, self.options.steps)
        self._settle()
        spent, cpu = 1e3 * (time.perf_counter() - began) / self.options.steps, time.process_time() - cpu
        if full:
            time.sleep(min(QUIET, self.ahead * load_ms / 1e3))
        elif variant.name == CACHED:
            self._least = min(self._least, spent)
        return spent, 1e3 * cpu / self.options.steps

    def _steps(self, variant: Variant, count: int) -> None:
        for _ in range(count):
            with variant.around():
                self.trainer.run(1, variant.step, variant.pairs)

    def _loading(self) -> tuple[float, float]:
        """Milliseconds of a micro-batch from the loader alone, by the clock and in CPU time of its processes."""
        for _ in range(self.ahead):
            next(self.feed)
        own = psutil.Process()
        family = [*own.children(recursive=True)]
        began, before = time.perf_counter(), sum(map(_cpu_seconds, family))
        loads = max(LOADS, self.ahead)
        for _ in range(loads):
            next(self.feed)
        self._settle()
        spent, cpu = time.perf_counter() - began, sum(map(_cpu_seconds, family)) - before
        return 1e3 * spent / loads, 1e3 * cpu / loads

    def _trace(self, folder: Path) -> float:
        """Three steps on held batches under the profiler, into rank-N.json.gz of the folder.

        Returns what the profiler costs an operator, in microseconds.
        """
        cuda = [ProfilerActivity.CUDA] if self.ranks.device.type == "cuda" else []
        step, pairs = self.trainer.step, endless(self.held)
        file = folder / f"rank-{self.ranks.rank}.json.gz"
        with profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=bool(cuda),  # for rates of kernels alone
                     schedule=schedule(wait=0, warmup=1, active=TRACED, repeat=1),
                     on_trace_ready=lambda done: chrome_trace.write(done, file)) as profiler:
            for _ in range(1 + TRACED):
                self.trainer.run(1, step, pairs)
                profiler.step()
        return observer_us(self.ranks.device, cuda)

    def _settle(self) -> None:
        wait(self.ranks.device)


def _cpu_seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
