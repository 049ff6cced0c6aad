"""The training loop: builds the parts that the recipe names, runs the steps, and writes the run folder.

Nothing in it waits for the device between steps. Data workers are forked before the model is built and the ranks meet.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.data import make_loader, make_plan
from lfhelpers.data.manifest import Manifest
from lfhelpers.data.order import Plan
from lfhelpers.data.quarantine import Quarantine
from lfhelpers.errors import LfError
from lfhelpers.levers import compile as compile_lever
from lfhelpers.measure import hardware
from lfhelpers.measure.clock import StepClock
from lfhelpers.measure.probe import Probe
from lfhelpers.measure.system import Monitor
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run, timed
from lfhelpers.train import checkpoint
from lfhelpers.train.communication import ExposedCommunication
from lfhelpers.train.feed import Feed
from lfhelpers.train.hooks import Hook, TensorBoard, call
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks, joined
from lfhelpers.train.recorder import Recorder
from lfhelpers.train.step import Step
from lfhelpers.train.summary import device_memory, rank_means, summarise
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
    hooks: list[Hook]


def train(job: Recipe, run: Run, ranks: Ranks, resume: bool = False, hooks: Sequence[Hook] = ()) -> dict[str, Any]:
    """Train as the recipe says and return the summary, which rank 0 has written; `resume` continues the run folder."""
    workload = find(job)
    manifest = Manifest.load(str(job.data.path), cache_gb=job.data.cache_gb)
    plan = make_plan(job, manifest, ranks.world)
    start = checkpoint.steps_done(run) if resume else 0
    if start >= job.steps:
        raise LfError(f"run {run.id} has no step left to do: all {job.steps} are done.")
    if ranks.first and job.log.tensorboard:
        hooks = [*hooks, TensorBoard()]
    ranks.take_device()
    bad = Quarantine(run.path / "quarantine", job.data.max_bad) if job.data.on_bad == "skip" else None
    loader = make_loader(job, manifest, plan, workload.fields, workload.sample, ranks.rank, start=start, stop=job.steps,
                         bad=bad)
    with loader, joined(ranks):
        parts = _build(job, run, ranks, workload, plan, list(hooks))
        if resume:
            plan.check_state(checkpoint.load(run, parts.model, parts.optimizer, ranks))
            if ranks.first:
                run.truncate_steps(start)
        if ranks.first:
            run.write("environment.json", hardware.describe() | {"device": ranks.device.type})
        return _run(parts, iter(loader), start)


def _build(job: Recipe, run: Run, ranks: Ranks, workload: Workload, plan: Plan, hooks: list[Hook]) -> Job:
    torch.manual_seed(job.seed)
    with ranks.device:
        model = workload.model()
    compile_lever.apply(job, blocks_of(workload, model))
    torch.manual_seed(job.seed + ranks.rank)  # weights are alike on all ranks, dropout must not be
    precision = Precision(job.precision, ranks.device)
    peak = job.optimizer.lr or workload.default_lr()
    optimizer = Optimizer(job, model, peak, precision.scaler, keep_grads=ranks.world > 1 and job.ddp.bucket_view)
    return Job(job, run, ranks, workload, plan, _wrap(job, model, ranks), optimizer, precision, hooks)


def _wrap(job: Recipe, model: nn.Module, ranks: Ranks) -> nn.Module:
    """DDP as the recipe says; buffers are never broadcast, since no workload here updates any in forward."""
    if ranks.world == 1:
        return model
    return DistributedDataParallel(
        model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None, bucket_cap_mb=job.ddp.bucket_mb,
        gradient_as_bucket_view=job.ddp.bucket_view, find_unused_parameters=job.ddp.find_unused,
        static_graph=job.ddp.static_graph, broadcast_buffers=False)


def _run(parts: Job, host_batches: Iterator[Batch], start: int) -> dict[str, Any]:
    job, ranks = parts.recipe, parts.ranks
    quality = {"before": _evaluate(parts)} if not start else {}
    clock = StepClock(ranks.device)
    recorder = Recorder(parts.run, ranks, clock, parts.hooks)
    communication = ExposedCommunication(parts.model)
    monitor = Monitor()
    call(parts.hooks, Hook.run_start, job, parts.run, parts.model)
    parts.model.train()
    _steps(parts, host_batches, start, clock, recorder, communication, monitor)
    recorder.collect(wait=True)
    usage = monitor.stop()
    quality["after"] = _evaluate(parts)
    summary = _summary(parts, recorder, communication, usage)
    summary["quality"] = {name: value for name, value in quality.items() if value}
    call(parts.hooks, Hook.run_end, summary)
    if ranks.first:
        parts.run.write("summary.json", summary)
    return summary


def _steps(parts: Job, host_batches: Iterator[Batch], start: int, clock: StepClock, recorder: Recorder,
           communication: ExposedCommunication, monitor: Monitor) -> None:
    """All steps; the monitor looks at the timed ones alone, and the last one is profiled (measure.probe says why)."""
    job, ranks, plan = parts.recipe, parts.ranks, parts.plan
    feed = Feed(host_batches, plan, parts.workload, ranks, clock, job, start)
    step = Step(parts.workload, parts.model, parts.optimizer, parts.precision, ranks, clock,
                job.batch.micro * job.batch.accumulate, parts.hooks, job.log.loss_item)
    probed = job.steps if job.log.probe else -1
    first_timed = max(start, min(job.log.skip, job.steps - 1))
    for index in range(start, job.steps):
        done = index + 1
        if index == first_timed:
            monitor.start()
        if done == probed:
            monitor.stop()
        probe = Probe(ranks.device, done) if done == probed and ranks.first else None
        clock.begin()
        with probe or contextlib.nullcontext():
            values = step(index, feed, plan.micro_batches(index))
        clock.end(values, step=done, epoch=plan.epoch(index), samples=plan.real_samples(index), at=time.perf_counter(),
                  probe=done == probed, graphs=compile_lever.graphs(job))
        communication.after_step(done - start)
        recorder.collect()
        if probe:
            parts.run.write("probe.json", probe.result())
        if _due(job, done):
            checkpoint.save(parts.run, done, parts.model, parts.optimizer, plan.state(done), ranks, job.checkpoint.keep)
        if done == probed or _due(job, done):
            ranks.barrier()
            clock.pause()


def _due(job: Recipe, done: int) -> bool:
    every, last = job.checkpoint.every, done == job.steps
    return bool(every and done % every == 0) or (last and bool(every or job.checkpoint.final))


def _evaluate(parts: Job) -> dict[str, float]:
    """Held-out quality on rank 0, in eval mode; the other ranks wait."""
    samples, model = parts.recipe.evaluate.samples, checkpoint.bare(parts.model)
    quality: dict[str, float] = {}
    if samples and parts.ranks.first:
        model.eval()
        with torch.no_grad(), parts.precision.autocast():
            quality = parts.workload.evaluate(model, samples, parts.ranks.device)
        model.train()
    parts.ranks.barrier()
    return quality


def _summary(parts: Job, recorder: Recorder, communication: ExposedCommunication,
             usage: dict[str, Any]) -> dict[str, Any]:
    job, ranks = parts.recipe, parts.ranks
    rows = timed(recorder.rows, job.log.skip)
    means = ranks.gather(rank_means(rows))
    exposed = ranks.gather(communication.milliseconds())
    summary = summarise(job, ranks, rows, means, exposed, parts.workload.flops_per_sample())
    skipped = sum(row["skipped"] for row in recorder.rows)
    return {
        "hardware": hardware.title(ranks.device.type), **summary,
        "steps": {"applied": len(recorder.rows) - skipped, "skipped": skipped, "timed": len(rows)},
        "memory": device_memory(ranks) | {"host_rss_gib": usage["host_rss_gib"]},
        "utilisation": {key: usage[key] for key in ("gpu_percent", "cpu_percent", "cpu_count")},
        "loss": {"first": recorder.rows[0]["loss"], "last": recorder.rows[-1]["loss"]},
    }
