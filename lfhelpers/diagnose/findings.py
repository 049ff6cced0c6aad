"""Likely causes of a slow step, inferred from the parts of a step report by documented thresholds.

That costs nothing to apply but can't prove a cause: a finding's share is the part of the step that it may account for,
so the most that its remedy can win, and only an A/B of the remedy says what it does win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lfhelpers.diagnose.report import StepReport

# Shares are percent of the step, unless said otherwise.
DATA_WAIT_SHARE = 10.0
"""Below it, faster data can win less than noise on a busy machine hides."""
COPY_SHARE = 5.0
"""A copy that runs beside computation takes less; a blocking one of images takes more."""
COMMUNICATION_SHARE = 3.0
"""Exposed exchange below it isn't worth a lever; a good overlap reaches 2 %."""
LARGE_MODEL_MB = 400.0
"""Gradients of fewer MiB fit into so few buckets of 100 that the exchange would begin when backward is over."""
OPTIMIZER_SHARE = 20.0
"""A fused AdamW of a model that fills the GPU stays below it."""
SLOW_RANK_SHARE = 5.0
"""Difference between the slowest and the fastest rank in one part."""
LAUNCH_SHARE = 25.0
"""Percent of forward, backward and optimizer that bare operator overhead explains: a small healthy model has 5-20."""
LAUNCH_SHARE_BEHIND_READS = 50.0
"""The same where the host also reads values back: waiting for the GPU then looks like launching."""
HOST_BOUND = 0.9
"""Share of the step (without data wait) that a GPU's host spends enqueueing: above it the GPU waits for launches."""
IDLE_SHARE = 10.0
"""Percent of the time without any kernel on the GPU, data wait not counted, that a busy host is blamed for."""
LOOP_CALLS, LOOP_SHARE = 1000, 5.0
"""Cheap calls of one operator in a step that point to a loop over elements or samples, and the least share of all."""
HOST_READS_ALLOWED = 4
"""Values read back in each micro-batch that are taken for bookkeeping: a loss, a norm."""
LOCKSTEP_READS = 50
"""Reads from which host and GPU are taken to run in lockstep: every launch between two reads is exposed then."""
READ_STALL_US = 20.0
"""What one read costs a GPU at least: the round trip, and the refilling of an empty queue."""
LOCKSTEP_RANK = 20.0
"""Lockstep reads are ranked before findings with a share below this, whatever their own: they blur all other timers."""


@dataclass(frozen=True)
class Finding:
    """A likely cause: the percent of the step that it may account for, the evidence, and the recipe field to change."""

    name: str
    share_percent: float
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}, {self.share_percent:.1f} % of the step: {self.evidence}. Remedy: {self.remedy}."


def find(report: StepReport) -> list[Finding]:
    """What the thresholds find, the likeliest cause first; `steady` alone if nothing is."""
    found = [finding for check in CHECKS if (finding := check(report)) is not None]
    if not found:
        return [_steady(report)]
    floors = {"host reads": LOCKSTEP_RANK if report.probe and report.probe["host_reads"] >= LOCKSTEP_READS else 0.0}
    return sorted(found, key=lambda finding: -max(finding.share_percent, floors.get(finding.name, 0.0)))


def _data_wait(report: StepReport) -> Finding | None:
    share, busy = report.percent["data_wait"], report.utilisation.get("cpu_percent")
    if share < DATA_WAIT_SHARE:
        return None
    evidence = f"each step waits {report.ms['data_wait']:.1f} of {sum(report.ms.values()):.1f} ms for its batch"
    if busy is not None:
        evidence += f"; the host's cores are {busy:.0f} % busy"
    if report.job.data.loader == "as_found":
        return Finding("data wait", share, evidence, "data.loader='webdataset', whose workers work ahead of the step")
    workers = "automatic" if report.job.data.workers is None else report.job.data.workers
    return Finding("data wait", share, evidence,
                   f"raise data.workers (now {workers}) as long as cores are free, and data.prefetch")


def _data_copy(report: StepReport) -> Finding | None:
    if report.percent["host_to_device"] < COPY_SHARE:
        return None
    return Finding("data copy", report.percent["host_to_device"],
                   f"the step stands {report.ms['host_to_device']:.1f} ms for copies to the device",
                   "data.pin=true and data.async_copy=true, and images as uint8 until they are there")


def _tiny_operators(report: StepReport) -> Finding | None:
    if report.probe is None or not report.compute_ms:
        return None
    ratio, loop = 100 * report.launch_ms / report.compute_ms, _loop(report)
    host = report.host_ms / max(sum(report.ms.values()) - report.ms["data_wait"], 1e-9)
    if report.device == "cuda":
        needed = LAUNCH_SHARE_BEHIND_READS if report.probe["host_reads"] else LAUNCH_SHARE
        found = host >= HOST_BOUND and ratio >= needed
    else:
        found = ratio >= LAUNCH_SHARE or (loop is not None and report.share(report.launch_ms) >= LOOP_SHARE)
    if not found:
        return None
    evidence = (f"{report.operators:,} operators a step, at the {report.probe['tiny_operator_us']:.1f} us that the "
                f"smallest costs here, are {report.launch_ms:.1f} of the {report.compute_ms:.1f} ms of forward, "
                "backward and optimizer")
    if report.device == "cuda":
        evidence += f"; the host is busy {100 * host:.0f} % of the step, so the GPU waits for launches"
    if loop is not None:
        evidence += f"; {loop['name']} alone runs {loop['calls']:,} times"
    return Finding("tiny operators", report.share(report.launch_ms), evidence, _fewer_operators(report))


def _host_bound(report: StepReport) -> Finding | None:
    """The GPU idles beside a busy host, though its operators are few: Python, guards of compiled code, hooks."""
    busy, waited = report.utilisation.get("gpu_percent"), report.percent["data_wait"]
    host = report.host_ms / max(sum(report.ms.values()) - report.ms["data_wait"], 1e-9)
    if report.device != "cuda" or busy is None or host < HOST_BOUND or _tiny_operators(report) is not None:
        return None
    idle = 100 - busy - waited
    if idle < IDLE_SHARE:
        return None
    return Finding("host-bound", idle, f"the host is busy {100 * host:.0f} % of the step, and the GPU holds a kernel "
                   f"in {busy:.0f} % of the time: it waits for the host, whose work a step isn't mainly launches",
                   "a larger batch.micro, which gives the GPU more to do for the same work of the host")


def _loop(report: StepReport) -> Mapping[str, Any] | None:
    """The costliest of the operators that a step calls often, for next to nothing each (the profiler slows them)."""
    rows, cheap_ms = (report.probe["top"], 3 * report.probe["tiny_operator_us"] / 1e3) if report.probe else ([], 0.0)
    return next((row for row in rows if row["calls"] >= LOOP_CALLS and row["self_ms"] <= row["calls"] * cheap_ms), None)


def _fewer_operators(report: StepReport) -> str:
    counts = report.probe["operators"] if report.probe else {}
    if not report.job.optimizer.fused and counts["optimizer"] > max(counts["forward"], counts["backward"]):
        return "optimizer.fused=true, one operator for the whole update"
    if report.job.compile.scope == "none":
        return "compile.scope='blocks' for those in blocks, and one tensor operation in place of a Python loop"
    return "a larger batch.micro, which spreads the same operators over more samples"


def _host_reads(report: StepReport) -> Finding | None:
    if report.probe is None or report.probe["host_reads"] <= HOST_READS_ALLOWED * report.job.batch.accumulate:
        return None
    reads = report.probe["host_reads"]
    evidence = f"{reads:,} values a step are read back by the host, as .item() and boolean masks do"
    if report.device == "cuda":
        lockstep = reads >= LOCKSTEP_READS
        ms = reads * READ_STALL_US / 1e3 + (report.launch_ms if lockstep else 0.0)
        ms = min(ms, sum(report.ms.values()) - report.ms["data_wait"])
        evidence += f"; each empties the GPU's queue, for {READ_STALL_US:.0f} us or more" + \
            (", and exposes the launches that follow" if lockstep else "")
    else:
        ms = reads * report.probe["tiny_operator_us"] / 1e3
        evidence += f"; cheap on a CPU, but on a GPU each would empty the queue, for {READ_STALL_US:.0f} us or more"
    few = report.job.log.loss_item and reads < LOCKSTEP_READS
    return Finding("host reads", report.share(ms), evidence, "log.loss_item=false" if few else
                   "keep values on the device and read their sum once every few steps, as log.loss_item=false does")


def _communication(report: StepReport) -> Finding | None:
    if report.percent["communication"] < COMMUNICATION_SHARE:
        return None
    ddp, evidence = report.job.ddp, (f"{report.ms['communication']:.1f} ms of the exchange of gradients between "
                                     f"{report.ranks} ranks aren't hidden behind backward")
    waiting, transfer = (report.communication.get(key, 0.0) for key in ("waiting_ms", "transfer_ms"))
    default = ddp.bucket_mb is None and not ddp.bucket_list_mb
    buckets = report.communication.get("buckets_mb")
    large = not buckets or sum(buckets) >= LARGE_MODEL_MB
    remedy = "ddp.find_unused=false" if ddp.find_unused else "ddp.bucket_mb=100" if default and large else \
        "batch.accumulate: exchange gradients once for more samples"
    if waiting > transfer:
        evidence += f", {waiting:.1f} ms of them waiting for late ranks, which no bucket size shortens"
        remedy = "find what makes ranks late: their data wait, cores and clocks"
    return Finding("communication", report.percent["communication"], evidence, remedy)


def _optimizer(report: StepReport) -> Finding | None:
    if report.percent["optimizer"] < OPTIMIZER_SHARE:
        return None
    fewer = "batch.accumulate or a larger batch.micro: fewer updates for the same samples"
    remedy = fewer if report.job.optimizer.fused else "optimizer.fused=true"
    return Finding("optimizer", report.percent["optimizer"],
                   f"clipping and update take {report.ms['optimizer']:.1f} of {sum(report.ms.values()):.1f} ms", remedy)


def _slow_rank(report: StepReport) -> Finding | None:
    """Ranks meet in backward, where the fast wait for the slow: so backward and communication tell nothing here."""
    spreads = {part: report.ranks_ms[part]["spread"] for part in report.ms
               if part in report.ranks_ms and part not in ("backward", "communication")}
    part = max(spreads, key=lambda key: spreads[key], default="")
    if report.ranks < 2 or not part or report.share(spreads[part]) < SLOW_RANK_SHARE:
        return None
    remedy = "data.workers, and the disk that this rank reads" if part == "data_wait" else \
        "free that rank's cores (data.workers) and GPU of other work, and see `lfhelpers doctor` there"
    return Finding("slow rank", report.share(spreads[part]),
                   f"{part.replace('_', ' ')} takes the slowest rank {report.ranks_ms[part]['max']:.1f} ms, "
                   f"{spreads[part]:.1f} ms more than the fastest, and all wait for it", remedy)


def _steady(report: StepReport) -> Finding:
    captured = report.percent["captured"]
    share = captured or report.percent["forward"] + report.percent["backward"]
    what = "the recorded graph takes" if captured else "forward and backward take"
    if report.job.compile.scope == "none":
        remedy = "compile.scope='blocks', which saves memory traffic"
    else:
        remedy = "a larger batch.micro, as far as memory allows"
    return Finding("steady", share, f"{what} {share:.1f} % of the step and no stall reaches its threshold: the run "
                   "is bound by computation", remedy)


CHECKS: tuple[Callable[[StepReport], Finding | None], ...] = (
    _data_wait, _data_copy, _tiny_operators, _host_bound, _host_reads, _communication, _optimizer, _slow_rank)
