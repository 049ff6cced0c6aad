"""Where the time of a watched loop went, what each remedy could win, and the torch lines that do it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lfhelpers.diagnose.ceilings import Ceilings
from lfhelpers.diagnose.findings import COPY_SHARE, DATA_WAIT_SHARE, HOST_BOUND, OPTIMIZER_SHARE
from lfhelpers.diagnose.report import aligned, percents
from lfhelpers.diagnose.timelines import Serial
from lfhelpers.measure import hardware

WORDS = {
    "data_wait": "data wait", "host_to_device": "batch to forward (copies)", "forward": "forward",
    "backward": "loss and backward", "communication": "communication", "optimizer": "optimizer",
    "other": "after the update"}
LEAST = 10
"""Steady steps below which nothing is concluded."""


@dataclass(frozen=True)
class WatchReport:
    """The mean step of a loop in milliseconds, by part; percents sum to 100.

    host_ms: a step of the host alone, without its wait for data. load_cpu_ms: CPU time in that wait of the thread that
    waits, which loads by itself where there are no workers. facts: workers, pinned, fused, as diagnose.watched
    knows them. traces: the folder of a trace, from which the ceilings are then read.
    """

    steps: int
    ms: Mapping[str, float]
    step_ms: tuple[float, ...]
    host_ms: float
    load_cpu_ms: float
    samples_per_s: float
    device: str
    facts: Mapping[str, Any]
    traces: Path | None = None

    @property
    def percent(self) -> dict[str, float]:
        """Shares of the parts, to a tenth, which sum to exactly 100; all 0 without a step."""
        return percents(self.ms) if self.steps else dict.fromkeys(self.ms, 0.0)

    @cached_property
    def ceilings(self) -> Ceilings:
        """What removing each cause could win: from the trace where there is one, else from the parts alone."""
        if self.traces is not None:
            from lfhelpers.diagnose.tiers import of_path

            return of_path(self.traces)
        parts = {"data": self.ms["data_wait"], "optimizer": self.ms["optimizer"]}
        parts |= {"copies": self.ms["host_to_device"]} if self.device == "cuda" else {}
        stays = {"data": self._data_stays} | ({"optimizer": 1.0} if self.facts.get("fused") else {})
        return Ceilings(Serial(max(sum(self.ms.values()), 1e-9), parts, stays), "the loop's own marks")

    @property
    def _data_stays(self) -> float:
        """The share of the wait that no worker takes away: all cores together need that long for its CPU time."""
        wait, step = self.ms["data_wait"], sum(self.ms.values())
        busy = self.load_cpu_ms + (step - wait if self.device == "cpu" else 0.0)
        beyond = busy / hardware.usable_cores() - (step - wait)  # up to there it runs beside the rest of the step
        return min(1.0, max(0.0, beyond / wait)) if wait else 0.0

    @property
    def findings(self) -> list[str]:
        """Likely causes with their torch lines, the costliest first; empty where no part reaches its threshold."""
        share, found = self.percent, list[tuple[float, str]]()
        if share["data_wait"] >= DATA_WAIT_SHARE:
            found.append((share["data_wait"], f"data wait, {share['data_wait']:.0f} % of the step: {self._loader()}"))
        if self.device == "cuda" and share["host_to_device"] >= COPY_SHARE:
            found.append((share["host_to_device"], f"copies, {share['host_to_device']:.0f} % of the step: "
                          "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)"))
        if share["optimizer"] >= OPTIMIZER_SHARE and not self.facts.get("fused"):
            found.append((share["optimizer"], f"optimizer, {share['optimizer']:.0f} % of the step: "
                          "torch.optim.AdamW(..., fused=True)"))
        busy = self.host_ms / max(sum(self.ms.values()) - self.ms["data_wait"], 1e-9)
        if self.device == "cuda" and busy >= HOST_BOUND and share["data_wait"] < 50:
            found.append((0.0, f"the host is busy {100 * min(busy, 1.0):.0f} % of the step, so the GPU may wait for "
                               "launches: torch.compile(model, mode='reduce-overhead'); "
                               "lf.watch(..., trace=FOLDER) tells how much that wins"))
        return [sentence for _, sentence in sorted(found, key=lambda one: -one[0])]

    def rows(self) -> list[dict[str, Any]]:
        """A row a part; last, the whole step."""
        share = self.percent
        rows = [{"part": WORDS[part], "ms": round(self.ms[part], 3), "percent": share[part]} for part in self.ms]
        return [*rows, {"part": "whole step", "ms": round(sum(self.ms.values()), 3),
                        "percent": round(sum(share.values()), 1)}]

    def table(self) -> str:
        """As plain text: headline, parts, findings, ceilings."""
        if self.steps < LEAST:
            return (f"watched {self.steps} steady steps, and {LEAST} are needed to tell anything; watch a longer loop, "
                    "or a smaller skip.")
        lines = [f"watched {self.steps} steps on {self.device}: {statistics.fmean(self.step_ms):.2f} ms a step (median "
                 f"{statistics.median(self.step_ms):.2f})" + (f", {self.samples_per_s:,.1f} samples/s"
                                                              if self.samples_per_s else ""), *aligned(self.rows())]
        lines += [f"{rank}. {finding}" for rank, finding in enumerate(self.findings, 1)]
        return "\n".join([*lines, self.ceilings.table()])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"steps": self.steps, "device": self.device, "ms": dict(self.ms), "percent": self.percent,
                "host_ms": self.host_ms, "samples_per_s": self.samples_per_s, "findings": self.findings,
                "ceilings": self.ceilings.as_dict()}

    def _loader(self) -> str:
        workers = self.facts.get("workers")
        if workers is None:
            return "a loader that works ahead of the step, as torch.utils.data.DataLoader(dataset, num_workers=4) does"
        if not workers:
            return ("DataLoader(..., num_workers=4, persistent_workers=True), which works ahead of the step; "
                    "it has num_workers=0")
        return (f"DataLoader(..., num_workers={2 * workers}, prefetch_factor=4), as long as cores are free; it has "
                f"num_workers={workers}")
