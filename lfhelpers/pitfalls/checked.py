"""What the detectors of a run have found, read from its folder: for `lfhelpers check`, also while the run goes on.

Nothing is measured here. The hooks of every run write what they see (memory growth, recompilations, shapes, a late
rank, numbers that are not finite, the order of samples) when they see it, the probe counts what the host waits for, and
the recipe says the rest. So a run that goes on, was killed or ended out of memory is told of as well; where there is a
summary, its figures of the whole run are taken. Each finding names its pitfall, whose module and section of notebook 07
explain it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lfhelpers.errors import LfError
from lfhelpers.pitfalls import GROUPS
from lfhelpers.pitfalls.order import Fingerprint, order_fingerprint
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run, load, timed

OFTEN = 0.02
"""Share from which skipped steps of fp16, beyond its first halvings of the scale, a slowed GPU and lost segments are
named."""
TINY_MB = 1.0
"""Buckets below torch's own first one are called tiny."""


@dataclass(frozen=True)
class Found:
    """A pitfall that a run is in, and what shows it."""

    pitfall: str
    text: str

    @property
    def section(self) -> str:
        """Where notebook 07 explains it."""
        return next(group for group, names in GROUPS.items() if self.pitfall in names)

    def __str__(self) -> str:
        return f"{self.pitfall.replace('_', ' ')}: {self.text} [notebook 07, {self.section}]"


def check(run: str | os.PathLike[str] | Run) -> list[Found]:
    """All that is found in a finished or running run, in the order of notebook 07; empty for a clean one."""
    found = [item for look in LOOKS for item in look(load(run))]
    order = [name for names in GROUPS.values() for name in names]
    return sorted(found, key=lambda item: order.index(item.pitfall))


def _memory(run: Run) -> Iterator[Found]:
    growth = run.summary.get("memory_growth", {})
    texts = [item["text"] for item in _left(run, "memory-growth")]
    yield from (Found("loss_list", text) for text in texts or ([growth["text"]] if growth.get("leaks") else []))


def _recompiled(run: Run) -> Iterator[Found]:
    again: Any = run.summary.get("compile", {}).get("recompilations")
    again = again or max(_left(run, "recompiled"), key=len, default=[])
    if isinstance(again, list) and again:
        yield Found("recompiles", f"{len(again)} recompilation{'s' if len(again) > 1 else ''}, the last one of "
                                  f"{again[-1]['what']} because '{again[-1]['guard']}'")


def _shapes(run: Run) -> Iterator[Found]:
    for item in _left(run, "shapes")[:1]:  # ranks take their batches from one dataset, and would say the same
        yield Found("new_shapes", item["text"])


def _left(run: Run, what: str) -> list[Any]:
    """What the detectors of all ranks have left under this name."""
    return [run.read(path.name) for path in sorted(run.path.glob(f"{what}-rank-*.json"))]


def _order(run: Run) -> Iterator[Found]:
    data = run.recipe.data
    if data.loader == "synthetic" or data.shuffle == "none":  # there epochs, or steps, are alike on purpose
        return
    with contextlib.suppress(LfError):  # it has made no step
        yield from repeats(order_fingerprint(run))


def repeats(given: Fingerprint) -> Iterator[Found]:
    """The first step that was given what an earlier one was, sample by sample: shuffled epochs never do that."""
    seen: dict[int, int] = {}
    for step, ids in zip(given.steps, given.ids, strict=True):
        if ids in seen:
            yield Found("resume_repeats", f"step {step} was given the same samples in the same places as step "
                                          f"{seen[ids]}")
            return
        seen[ids] = step


def _late(run: Run) -> Iterator[Found]:
    from lfhelpers.train.straggler import late as late_of
    from lfhelpers.train.straggler import left

    if late := run.summary.get("late_rank"):
        yield Found("late_rank", late["text"])
    elif not run.summary:
        told = left(run)
        if slowest := late_of([seen for _, seen in told]):
            yield Found("late_rank", str(replace(slowest, rank=told[slowest.rank][0])))


def _threads(run: Run) -> Iterator[Found]:
    from lfhelpers.train.straggler import crowded, left

    if text := crowded([seen for _, seen in left(run)]):
        yield Found("thread_crowd", text)


def _slowed(run: Run) -> Iterator[Found]:
    """A GPU that something holds down, or a network that loses what is sent: also where all ranks are equally late."""
    several = len(list((run.path / "hosts").glob("*.json"))) > 1  # one alone sends other people's segments
    told = [run.summary["utilisation"]] if "utilisation" in run.summary else \
        [item["utilisation"] for item in _left(run, "pace")]
    said = {}
    for usage in told:
        for why, share in usage.get("gpu_slowed", {}).items():
            if share >= 100 * OFTEN:
                said[why] = f"{why} holds the GPU's clock down in {share:.0f} % of the run, at " \
                            f"{usage['gpu_clock_mhz']:.0f} MHz in the median"
        if several and (usage.get("tcp_resent_percent") or 0.0) >= 100 * OFTEN:
            said["network"] = f"{usage['tcp_resent_percent']:.1f} % of what this host sends is lost and sent again"
    yield from (Found("late_rank", text) for text in said.values())


def _nonfinite(run: Run) -> Iterator[Found]:
    named = {"batch": "black_image", "forward": "masked_row", "loss": "scaler_collapse", "weights": "clip_nan",
             "gradient": "clip_nan"}
    for path in sorted(run.path.glob("nonfinite-rank-*.json")):
        for item in run.read(path.name):
            if item["cause"] in named:
                yield Found(named[item["cause"]], f"step {item['step']} was skipped, because {item['text']}")


def _skipped(run: Run) -> Iterator[Found]:
    rows: list[Mapping[str, Any]] = timed(run.steps(), run.recipe.log.skip)
    skipped = sum(row["skipped"] for row in rows)
    if rows and skipped > max(1, OFTEN * len(rows)):
        yield Found("scaler_collapse", f"{skipped} of {len(rows)} steps were skipped")


def _reads(run: Run) -> Iterator[Found]:
    reads = (run.read("probe.json") or {}).get("host_reads", 0)
    if reads:
        yield Found("item_each_step", f"the host waits for {reads} values in a step")


def _profiled(run: Run) -> Iterator[Found]:
    for item in _left(run, "profiler")[:1]:
        yield Found("profiler_on", item["text"])


def _asked(run: Run) -> Iterator[Found]:
    yield from asked(run.recipe, len(list(run.path.glob("order-rank-*.jsonl"))))


def asked(job: Recipe, ranks: int) -> Iterator[Found]:
    """What the recipe itself asks for, and pays on so many ranks."""
    if ranks > 1 and job.ddp.find_unused:
        yield Found("find_unused", "ddp.find_unused=true walks the graph in every step, and sends once more; "
                                   "ddp.freeze_unused=true looks once")
    if ranks > 1 and job.ddp.bucket_mb is not None and job.ddp.bucket_mb < TINY_MB:
        yield Found("tiny_buckets", f"ddp.bucket_mb={job.ddp.bucket_mb:g} pays the link's latency for each bucket; "
                                    "leave it out, or let `lfhelpers tune` choose the sizes")
    if job.log.profile:
        yield Found("profiler_on", "log.profile=true records a trace on every rank, in steps that are not timed; it is "
                                   "for one run that `lfhelpers diagnose` reads")


LOOKS: tuple[Callable[[Run], Iterator[Found]], ...] = (
    _memory, _recompiled, _shapes, _order, _late, _threads, _slowed, _nonfinite, _skipped,
    _reads, _profiled, _asked)
