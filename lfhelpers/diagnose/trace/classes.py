"""What an event is, by its kind and name: work of the GPU in three classes, and states of a host thread.

Names are chosen by libraries and by users, so these patterns are the one place where a report depends on custom. A
kernel of an unknown name is computation; a moment of a thread in no known state is `forward host`, which therefore
holds all other Python too.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.read import ANNOTATION, COPY, GPU_WORK, KERNEL, LAUNCH, MEMSET, OPERATOR, Trace
from lfhelpers.measure import kernels

COMPUTE, COMMUNICATION, COPIES = range(3)
EXCHANGE = re.compile(kernels.COMMUNICATION, re.IGNORECASE)
HOST_EXCHANGE = re.compile(r"^(gloo|mpi|ucc):", re.IGNORECASE)
"""Exchanges that the host itself does; `nccl:...` on the host only launches one."""

DATA, SYNC, OPTIMIZER, BACKWARD = range(4)
"""States of a thread; where two hold at once, the earlier one counts: a sync inside the optimizer is a sync."""
STATES = (DATA, SYNC, OPTIMIZER, BACKWARD)
PATTERNS = {
    DATA: re.compile(r"dataloader|data_wait|(wait_for|load|next|get|fetch)_batch|data_(loading|fetch)", re.IGNORECASE),
    OPTIMIZER: re.compile(r"^optimizer\.|(?<![a-z])optimizer(?![a-z])", re.IGNORECASE),
    BACKWARD: re.compile(r"autograd::engine|AccumulateGrad|Backward\d*$|(?<![a-z])backward(?![a-z])"),
}
"""Annotations and operators by state: torch's own, those of `lfhelpers` (lf.data_wait) and of common trainers."""
SYNC_OPERATOR = re.compile(r"^aten::(item|_local_scalar_dense)$")
SYNC_CALL = re.compile(r"^(cuda|hip|cu|zeEvent|zeCommandQueue|zeFence)(Ctx|Device|Stream|Event|Host)?Synchronize"
                       r"|^(cuda|hip)(Memcpy(2D|3D|ToSymbol|FromSymbol|WithStream)?|Free)$|^cuMemcpy(Dto|Hto)\w_v2$")
"""Calls that return when the GPU has finished: synchronisations, blocking copies, and freeing of memory."""
PAGEABLE = re.compile(r"pageable", re.IGNORECASE)


def gpu_classes(trace: Trace) -> NDArray[np.int64]:
    """Class of each row [n]: COMPUTE, COMMUNICATION or COPIES for work of a GPU, -1 for anything else."""
    found = np.full(len(trace.kind), -1)
    found[trace.kind == KERNEL] = COMPUTE
    found[(trace.kind == KERNEL) & trace.named(EXCHANGE)] = COMMUNICATION
    found[list(trace.collectives)] = COMMUNICATION
    found[np.isin(trace.kind, (COPY, MEMSET))] = COPIES
    return found


def host_states(trace: Trace) -> dict[int, NDArray[np.bool_]]:
    """By state, bool [n]: the rows of the host that put their thread into it."""
    host = np.isin(trace.kind, (OPERATOR, ANNOTATION))
    found = {state: host & trace.named(pattern) for state, pattern in PATTERNS.items()}
    found[BACKWARD] &= ~found[OPTIMIZER]
    calls = trace.kind == LAUNCH
    found[SYNC] = (calls & trace.named(SYNC_CALL)) | (host & trace.named(SYNC_OPERATOR)) | (calls & _blocking(trace))
    return found


def _blocking(trace: Trace) -> NDArray[np.bool_]:
    """Calls whose copy goes from or to pageable memory: they wait for the GPU whatever their name says."""
    copies = (trace.kind == COPY) & trace.named(PAGEABLE) & (trace.correlation > 0)
    return np.isin(trace.correlation, trace.correlation[copies])


def work_rows(trace: Trace) -> NDArray[np.int64]:
    """Rows of GPU work on the device that has most of it (a report is about one GPU), in order of their start."""
    rows = trace.rows(*GPU_WORK)
    if not len(rows):
        return rows
    _, device = np.unique([lane.place for lane in trace.lanes], return_inverse=True)
    return rows[device[trace.lane[rows]] == np.bincount(device[trace.lane[rows]]).argmax()]
