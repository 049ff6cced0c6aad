"""The exchanges between ranks that a trace holds: which, how many, how large, how long.

A generic kernel's name is only a hint, so the name in its arguments counts where there is one. `nccl:...` on the host
launches an exchange and isn't one; `gloo:...` on the host is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.classes import COMMUNICATION, gpu_classes
from lfhelpers.diagnose.trace.processor import exchanges
from lfhelpers.diagnose.trace.read import GPU_WORK, Trace

WIDTHS = {"float": 4, "bfloat16": 2, "half": 2, "double": 8, "int": 4, "long": 8, "byte": 1, "char": 1, "bool": 1}


@dataclass(frozen=True)
class Exchange:
    """One kind of exchange over the whole trace; bytes are None where the trace doesn't tell them."""

    name: str
    calls: int
    ms: float
    shortest_ms: float
    longest_ms: float
    bytes: int | None
    largest_bytes: int | None


def rows_of(trace: Trace) -> NDArray[np.int64]:
    """The rows of exchanges on the GPU, or on the host where there is no GPU work, in order of their start."""
    if len(trace.rows(*GPU_WORK)):
        return np.flatnonzero(gpu_classes(trace) == COMMUNICATION)
    return np.flatnonzero(exchanges(trace))


def name_of(trace: Trace, row: int) -> str:
    """An exchange's name: that in its arguments, else its event's."""
    known = trace.collectives.get(row)
    return known.name if known else trace.names[trace.name[row]]


def summed(trace: Trace) -> list[Exchange]:
    """The kinds of exchange, the longest first."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for row in rows_of(trace).tolist():
        by_name[name_of(trace, row)].append(row)
    return sorted((_sum(trace, name, rows) for name, rows in by_name.items()), key=lambda item: -item.ms)


def _sum(trace: Trace, name: str, rows: list[int]) -> Exchange:
    length = (trace.end[rows] - trace.start[rows]) / 1e6
    sizes = [_bytes(trace, row) for row in rows]
    known = [size for size in sizes if size]
    return Exchange(name, len(rows), float(length.sum()), float(length.min()), float(length.max()),
                    sum(known) if len(known) == len(sizes) else None, max(known, default=None))


def _bytes(trace: Trace, row: int) -> int | None:
    known = trace.collectives.get(row)
    width = WIDTHS.get(known.dtype.lower()) if known else None
    return known.elements * width if known and width else None
