"""The training loop: builds the parts that the recipe names, runs the steps, and writes the run folder.

Nothing in it waits for the device between steps. Data workers are forked before the model is built and the ranks meet.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lfhelpers.data import make_loader, make_plan
from lfhelpers.data.loader import Loader
from lfhelpers.data.manifest import Manifest
from lfhelpers.data.order import Plan
from lfhelpers.data.quarantine import Quarantine
from lfhelpers.errors import LfError
from lfhelpers.levers import compile as compile_lever
from lfhelpers.levers.comm_hooks import Exchange
from lfhelpers.levers.compile import Compilation, session
from lfhelpers.levers.compile_health import merged
from lfhelpers.levers.limit import limited
from lfhelpers.measure import formats, hardware
from lfhelpers.measure.clock import StepClock
from lfhelpers.measure.probe import Probe
from lfhelpers.measure.system import Monitor
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run, timed
from lfhelpers.train import checkpoint
from lfhelpers.train.agreement import Agreement
from lfhelpers.train.assemble import assemble, stream
from lfhelpers.train.captured import CapturedStep, described, make_step
from lfhelpers.train.communication import ExposedCommunication
from lfhelpers.train.exchange import Watch
from lfhelpers.train.feed import Feed
from lfhelpers.train.guard import Guard
from lfhelpers.train.held_out import Curve
from lfhelpers.train.held_out import quality as quality_of
from lfhelpers.train.hooks import Hook, TensorBoard, call
from lfhelpers.train.leave import Leave
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.order_hash import OrderHash
from lfhelpers.train.precision import Precision, arithmetic, deterministic
from lfhelpers.train.ranks import Ranks, joined
from lfhelpers.train.recorder import Recorder
from lfhelpers.train.replan import Cuts, Replan, recomputation
from lfhelpers.train.sentinel import Sentinel
from lfhelpers.train.slowed import Slowed
from lfhelpers.train.step import Step
from lfhelpers.train.straggler import Straggler
from lfhelpers.train.summary import device_memory, rank_means, summarise
from lfhelpers.train.traces import Traces, profiled_steps
from lfhelpers.workloads.base import Batch, Workload, blocks_of, find


@dataclass
class Job:
    """The parts of one training process."""

    recipe: Recipe
    run: Run
    ranks: Ranks
    workload: Workload
    plan: Plan
    model: nn.Module
    optimizer: Optimizer
    precision: Precision
    exchange: Exchange | None
    compilation: Compilation
    hooks: list[Hook]


def train(job: Recipe, run: Run, ranks: Ranks, resume: bool = False, hooks: Sequence[Hook] = ()) -> dict[str, Any]:
    """Train as the recipe says and return the summary, which rank 0 has written; `resume` continues the run folder."""
    job = formats.settled(job, ranks.device.type)
    workload = find(job)
    manifest = Manifest.load(str(job.data.path), cache_gb=job.data.cache_gb)
    plan = make_plan(job, manifest, ranks.world)
    start = checkpoint.steps_done(run) if resume else 0
    if start >= job.steps:
        raise LfError(f"run {run.id} has no step left to do: all {job.steps} are done.")
    if ranks.first and job.log.tensorboard:
        hooks = [*hooks, TensorBoard()]
    if job.log.profile:
        hooks = [*hooks, Traces(job, ranks)]
    ranks.take_device()
    bad = Quarantine(run.path / "quarantine", job.data.max_bad) if job.data.on_bad == "skip" else None
    loader = make_loader(job, manifest, plan, workload.fields, workload.sample, ranks.rank, start=start, stop=job.steps,
                         bad=bad)
    with loader, joined(ranks, job.ddp.slow_link), stream(job, ranks), \
            arithmetic(job.precision.mode, ranks.device), deterministic(job.precision.deterministic), \
            session(job, ranks.device, ranks.first) as compilation:
        first = _first_batch(job, manifest, plan, workload) if job.ddp.freeze_unused else None
        if ranks.first:
            run.write("environment.json", hardware.describe() | {"device": ranks.device.type})
        # Nothing here keeps the parts: a model that DDP still wraps when the ranks part aborts gloo now and then.
        return _run(_ready(_build(job, run, ranks, workload, plan, compilation, list(hooks), first), start), loader,
                    start)


def _ready(parts: Job, start: int) -> Job:
    """The parts as the run's newest checkpoint has them, where steps are done already."""
    if start:
        parts.plan.check_state(checkpoint.load(parts.run, parts.model, parts.optimizer, parts.ranks, parts.exchange))
        if parts.ranks.first:
            parts.run.truncate_steps(start)
    return parts


def _build(job: Recipe, run: Run, ranks: Ranks, workload: Workload, plan: Plan, compilation: Compilation,
           hooks: list[Hook], first: Batch | None) -> Job:
    parts = assemble(job, ranks, workload, compilation, first)
    watch = [Watch(parts.exchange)] if parts.exchange is not None else []  # first: it knows what the guard can't see
    hooks = [*watch, Guard(job, run, workload, parts.precision, ranks, compilation.eager), Agreement(job, ranks),
             Slowed(ranks), Sentinel(ranks, compilation=compilation), OrderHash(ranks), Straggler(ranks),
             *([Curve(workload, ranks, compilation.eager)] if job.evaluate.every else []), *hooks]
    return Job(job, run, ranks, workload, plan, parts.model, parts.optimizer, parts.precision, parts.exchange,
               compilation, hooks)


def _first_batch(job: Recipe, manifest: Manifest, plan: Plan, workload: Workload) -> Batch:
    """A host batch like those of the data, alike on all ranks; the loader's own are delivered once, to the step."""
    alone = job.with_(**{"data.loader": "synthetic", "data.pin": False, "data.async_copy": False})
    with make_loader(alone, manifest, plan, workload.fields, workload.sample, 0, stop=1) as loader:
        return next(iter(loader))


def _run(parts: Job, loader: Loader, start: int) -> dict[str, Any]:
    monitor = Monitor()
    try:
        return _trained(parts, loader, start, monitor)
    finally:
        monitor.stop()
        call(parts.hooks, Hook.close)


def _trained(parts: Job, loader: Loader, start: int, monitor: Monitor) -> dict[str, Any]:
    job, ranks = parts.recipe, parts.ranks
    quality = {"before": _evaluate(parts)} if not start else {}
    clock = StepClock(ranks.device)
    recorder = Recorder(parts.run, ranks, clock, parts.hooks)
    communication = ExposedCommunication(parts.model, job.graph.scope != "none" and ranks.device.type == "cuda")
    call(parts.hooks, Hook.run_start, job, parts.run, parts.model)
    parts.model.train()
    with limited(job.batch.limit_gib, checkpoint.bare(parts.model), ranks.device):
        graph = _steps(parts, iter(loader), start, clock, recorder, communication, monitor)
    recorder.collect(wait=True)
    usage = monitor.stop()
    quality["after"] = _evaluate(parts)
    summary = _summary(parts, recorder, communication, usage)
    summary |= {"compile": merged(ranks.gather(parts.compilation.report()))} | ({"graph": graph} if graph else {})
    if hasattr(loader, "stats"):  # how full its queues were
        summary["data"] = loader.stats()
    summary["quality"] = {name: value for name, value in quality.items() if value}
    call(parts.hooks, Hook.run_end, summary)
    if ranks.first:
        parts.run.write("summary.json", summary)
    return summary


def _steps(parts: Job, host_batches: Iterator[Batch], start: int, clock: StepClock, recorder: Recorder,
           communication: ExposedCommunication, monitor: Monitor) -> dict[str, Any]:
    """All steps; the monitor looks at the timed ones alone, and the last one is profiled (measure.probe says why).

    Returns what is to be said of the CUDA graphs.
    """
    job, ranks, plan = parts.recipe, parts.ranks, parts.plan
    feed = Feed(host_batches, plan, parts.workload, ranks, clock, job, start, parts.hooks)
    made = make_step(job, parts.workload, parts.model, parts.optimizer, parts.precision, ranks, clock, parts.hooks)
    take = _stepping(parts, made, feed)
    probed, traced = job.steps if job.log.probe else -1, profiled_steps(job)
    first_timed = max(start, min(job.untimed(ranks.device.type), job.steps - 1))
    leave = Leave(ranks, start)
    for index in range(start, job.steps):
        done = index + 1
        if index == first_timed:
            monitor.start()
        if done == probed or (index in traced and index >= first_timed):
            monitor.stop()
        probe = Probe(ranks.device, done) if done == probed and (ranks.first or ranks.world > 1) else None
        clock.begin()
        parts.compilation.before_step()
        with probe or contextlib.nullcontext():
            values = take(index, plan.micro_batches(index))
        clock.end(values, step=done, epoch=plan.epoch(index), samples=plan.real_samples(index), at=time.perf_counter(),
                  probe=done == probed or index in traced, graphs=compile_lever.graphs(job), exposed=communication.live)
        call(parts.hooks, Hook.step_end, index)
        communication.after_step(done - start)
        parts.compilation.after_step(done - start)
        recorder.collect()
        if probe:
            communication.profiled = probe.exposure()
            if ranks.first:
                parts.run.write("probe.json", probe.result())
        leaving = done < job.steps and leave.agreed(done)
        if _due(job, done) or leaving:
            checkpoint.save(parts.run, done, parts.model, parts.optimizer, plan.state(done), ranks, job.checkpoint.keep,
                            parts.exchange)
        if leaving:
            recorder.collect(wait=True)
            leave.now()
        if done == probed or _due(job, done) or (job.evaluate.every and done % job.evaluate.every == 0):
            ranks.barrier()
            clock.pause()
    return described(job, made)


def _stepping(parts: Job, step: Step | CapturedStep, feed: Feed) -> Callable[[int, int], Tensor]:
    """Makes step number .. of .. micro-batches of the feed; with batch.replan, again where there was no memory."""
    job, ranks = parts.recipe, parts.ranks
    if not (job.batch.replan and isinstance(step, Step)):
        return lambda index, count: step(index, feed, count)
    recompute = recomputation(job, blocks_of(parts.workload, checkpoint.bare(parts.model)), ranks)
    replan, cuts = Replan(step, job, parts.model, parts.optimizer, ranks, recompute), Cuts(feed)
    parts.hooks.append(replan)
    return lambda index, count: replan(index, cuts, count)


def _due(job: Recipe, done: int) -> bool:
    every, last = job.checkpoint.every, done == job.steps
    return bool(every and done % every == 0) or (last and bool(every or job.checkpoint.final))


def _evaluate(parts: Job) -> dict[str, float]:
    """Held-out quality, where the recipe asks for any."""
    return quality_of(parts.recipe.evaluate, parts.workload, checkpoint.bare(parts.model), parts.ranks,
                      parts.precision, parts.compilation.eager())


def _summary(parts: Job, recorder: Recorder, communication: ExposedCommunication,
             usage: dict[str, Any]) -> dict[str, Any]:
    job, ranks = parts.recipe, parts.ranks
    rows = timed(recorder.rows, job.untimed(ranks.device.type))
    means = ranks.gather(rank_means(rows))
    exchange = communication.result(ranks)
    summary = summarise(job, ranks, rows, means, exchange.get("exposed_ms", 0.0), parts.workload.flops_per_sample())
    skipped = sum(row["skipped"] for row in recorder.rows)
    return {
        "hardware": hardware.title(ranks.device.type), **summary, **({"communication": exchange} if exchange else {}),
        "steps": {"applied": len(recorder.rows) - skipped, "skipped": skipped, "timed": len(rows)},
        "memory": device_memory(ranks) | {"host_rss_gib": usage["host_rss_gib"]},
        "utilisation": {key: value for key, value in usage.items() if key not in ("host_rss_gib", "gpu_memory_gib")},
        "loss": {"first": recorder.rows[0]["loss"], "last": recorder.rows[-1]["loss"]},
    }
