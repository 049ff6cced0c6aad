"""What the detectors of a run have found, read from its folder: for `lfhelpers check`, also while the run goes on.

Nothing is measured here. The hooks of every run write what they see (memory growth, a late rank, numbers that are not
finite, the order of samples), the probe counts what the host waits for, and the recipe says the rest. Each finding
names its pitfall, whose module and section of notebook 07 explain it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lfhelpers.errors import LfError
from lfhelpers.pitfalls import GROUPS
from lfhelpers.pitfalls.order import Fingerprint, order_fingerprint
from lfhelpers.runs import Run, load, timed

OFTEN = 0.02
"""Share from which skipped steps of fp16, beyond its first halvings of the scale, a slowed GPU and lost segments are
named."""


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
    if growth.get("leaks"):
        yield Found("loss_list", growth["text"])


def _recompiled(run: Run) -> Iterator[Found]:
    again = run.summary.get("compile", {}).get("recompilations")
    if isinstance(again, list) and again:
        yield Found("recompiles", f"{len(again)} recompilations, the last one of {again[-1]['what']} because "
                                  f"'{again[-1]['guard']}'")


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
    if late := run.summary.get("late_rank"):
        yield Found("late_rank", late["text"])


def _slowed(run: Run) -> Iterator[Found]:
    """A GPU that something holds down, or a network that loses what is sent: also where all ranks are equally late."""
    usage = run.summary.get("utilisation", {})
    for why, share in usage.get("gpu_slowed", {}).items():
        if share >= 100 * OFTEN:
            yield Found("late_rank", f"{why} holds the GPU's clock down in {share:.0f} % of the run, at "
                                     f"{usage['gpu_clock_mhz']:.0f} MHz in the median")
    several = len(list((run.path / "hosts").glob("*.json"))) > 1  # one alone sends other people's segments
    if several and (usage.get("tcp_resent_percent") or 0.0) >= 100 * OFTEN:
        yield Found("late_rank", f"{usage['tcp_resent_percent']:.1f} % of what this host sends is lost and sent again")


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


LOOKS: tuple[Callable[[Run], Iterator[Found]], ...] = (
    _memory, _recompiled, _order, _late, _slowed, _nonfinite, _skipped, _reads)
