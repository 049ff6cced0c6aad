"""What the GPU ran: kernels by group and by name, with the rate at which they worked where the trace holds shapes.

Groups are those of measure.kernels. A rate divides the operations (or bytes) of operators with recorded shapes by the
time of their kernels alone. Kernels that run beside each other count in full, so groups may sum to more than the step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.partition import Partition
from lfhelpers.diagnose.trace.read import COPY, MEMSET
from lfhelpers.diagnose.trace.shapes import DTYPES
from lfhelpers.measure import bandwidth, hardware, kernels

TOP = 10
TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
PRODUCT_GROUPS = ("matrix products",)
MEMORY_GROUPS = ("pointwise, uncompiled", "compiled pointwise and reductions")
COPY_GROUP = "copies and casts"


@dataclass(frozen=True)
class Group:
    """Kernels of one kind in the mean step.

    `rate` in `unit` (TFLOP/s, GB/s), None without shapes; of_peak in percent.
    """

    name: str
    kernels: float
    ms: float
    percent: float
    rate: float | None = None
    unit: str = ""
    of_peak: float | None = None
    peak: str = ""

    def row(self) -> dict[str, Any]:
        """For a table."""
        rate = "" if self.rate is None else f"{self.rate:,.1f} {self.unit}"
        return {"kernels": self.name, "a step": round(self.kernels, 1), "ms": round(self.ms, 3),
                "% of step": round(self.percent, 1), "rate": rate,
                "% of peak": None if self.of_peak is None else round(self.of_peak, 1)}


@dataclass(frozen=True)
class Kernel:
    """One kernel by name, in the mean step; median_us of one call."""

    name: str
    group: str
    calls: float
    ms: float
    median_us: float


def in_window(found: Partition) -> NDArray[np.int64]:
    """Indices into the partition's work that begins in its window."""
    start = found.trace.start[found.rows]
    return np.flatnonzero((start >= found.window[0]) & (start < found.window[1]))


def groups(found: Partition) -> list[Group]:
    """The groups, the costliest first."""
    trace, rows = found.trace, found.rows[in_window(found)]
    title_of = [kernels.group(name) for name in trace.names]
    titles = np.array([COPY_GROUP if kind in (COPY, MEMSET) else title_of[name]
                       for kind, name in zip(trace.kind[rows], trace.name[rows], strict=True)], dtype=object)
    length = trace.end[rows] - trace.start[rows]
    done = []
    for title in dict.fromkeys(titles):
        chosen = titles == title
        ms = float(length[chosen].sum()) / 1e6 / found.windows
        done.append(Group(str(title), float(chosen.sum()) / found.windows, ms,
                          100 * ms * found.windows * 1e6 / found.length, *_rate(found, str(title), rows[chosen])))
    return sorted(done, key=lambda group: -group.ms)


def top(found: Partition, most: int = TOP) -> list[Kernel]:
    """The kernels that take most time, by name."""
    trace, rows = found.trace, found.rows[in_window(found)]
    length = trace.end[rows] - trace.start[rows]
    sums = np.bincount(trace.name[rows], weights=length, minlength=len(trace.names))
    listed = []
    for name in np.argsort(-sums)[:most]:
        lengths = length[trace.name[rows] == name]
        if len(lengths):
            text = trace.names[name]
            listed.append(Kernel(text, kernels.group(text), len(lengths) / found.windows,
                                 float(lengths.sum()) / 1e6 / found.windows, float(np.median(lengths)) / 1e3))
    return listed


def as_rows(listed: Sequence[Any]) -> list[dict[str, Any]]:
    """Dataclasses as plain data."""
    return [asdict(item) for item in listed]


def _rate(found: Partition, title: str, rows: NDArray[np.int64]) -> tuple[float | None, str, float | None, str]:
    """(rate, unit, percent of the peak, whose peak) of a group's rows."""
    trace = found.trace
    length = (trace.end[rows] - trace.start[rows]).astype(float)
    if title == COPY_GROUP:
        known = trace.size[rows] > 0
        return (float(trace.size[rows][known].sum() / length[known].sum()), "GB/s", None, "") if length[known].sum() \
            else (None, "", None, "")
    place = trace.work.places(trace.external[rows])
    done = trace.work.flops if title in PRODUCT_GROUPS else trace.work.moved if title in MEMORY_GROUPS else None
    if done is None or not len(done):
        return None, "", None, ""
    known = (place >= 0) & (done[place] > 0)
    if not length[known].sum():
        return None, "", None, ""
    operators = np.unique(place[known])
    rate = float(done[operators].sum() / length[known].sum())  # per ns: giga a second
    if title in MEMORY_GROUPS:
        peak, source = bandwidth.peak_tb_s(trace.gpu or "")
        return rate, "GB/s", 100 * rate / (1e3 * peak) if peak else None, source
    dtype = DTYPES[int(np.bincount(trace.work.dtype[operators]).argmax())]
    if dtype == "fp32" and any(TF32.search(trace.names[name]) for name in np.unique(trace.name[rows[known]])):
        dtype = "tf32"
    peak, source = hardware.peak_tflops(trace.gpu or "", dtype)
    return rate / 1e3, "TFLOP/s", 100 * rate / 1e3 / peak if peak else None, f"{dtype}: {source}"
