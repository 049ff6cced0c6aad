"""Which call launched each piece of GPU work, and from which thread.

The tie is the correlation id. A CUDA graph's kernels all share that of their one launch. Work without a launch in the
trace (the profiler's buffer overflowed, or it was launched before recording began) stays work; only why the GPU was
idle before it can't be known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.read import LAUNCH, Trace

UNKNOWN = -1


@dataclass(frozen=True)
class Launches:
    """Of the rows of GPU work given [n]: the row of the call that launched each, or UNKNOWN; its time and lane."""

    call: NDArray[np.int64]
    time: NDArray[np.int64]
    lane: NDArray[np.int64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """bool [n]."""
        return self.call != UNKNOWN


def launches(trace: Trace, rows: NDArray[np.int64]) -> Launches:
    """The launch of each of the rows; of several calls with one id, the first."""
    calls = trace.rows(LAUNCH)
    calls = calls[trace.correlation[calls] > 0]
    ids, first = np.unique(trace.correlation[calls], return_index=True)
    if not len(ids):
        nothing = np.full(len(rows), UNKNOWN)
        return Launches(nothing, np.zeros(len(rows), np.int64), nothing)
    wanted = trace.correlation[rows]
    place = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    call = np.where((ids[place] == wanted) & (wanted > 0), calls[first[place]], UNKNOWN)
    return Launches(call, np.where(call == UNKNOWN, 0, trace.start[call]),
                    np.where(call == UNKNOWN, UNKNOWN, trace.lane[call]))
