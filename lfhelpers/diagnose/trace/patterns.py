"""Known shapes of a slow step: launch-bound, small kernels, recompiling. Each says what it saw and what may help.

A share is what of the step the pattern may account for; shares of different patterns overlap. (A late rank shows only
where several ranks are compared: diagnose.trace.ranks.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from lfhelpers.diagnose.trace.partition import CAUSES, HOST_CAUSES, Partition
from lfhelpers.diagnose.trace.read import ANNOTATION, KERNEL, LAUNCH, OPERATOR
from lfhelpers.diagnose.trace.work import in_window
from lfhelpers.measure import intervals

LAUNCH_SHARE = 15.0
"""Percent of the step that the GPU waits for the host, above which it is launch-bound."""
SHORT_US = 20.0
"""A median kernel above it hides the host's launches, so that waiting has other causes."""
SMALL_US = 5.0
"""About what one launch costs the host: a shorter kernel can't be launched as fast as it runs."""
SMALL_KERNELS = 200
SMALL_SHARE = 50.0
COMPILED = re.compile(r"TorchDynamo|Torch-Compiled Region|CompiledFunction")
COMPILING = re.compile(r"dynamo_timed|compile_inner|compile_fx|backend_compile|entire_frame_compile|call_user_compiler"
                       r"|CachingAutotuner")
LOADING = re.compile(r"^(cu|hip)(Module|Library)Load")
REGION = re.compile(r"Torch-Compiled Region: (\d+)/(\d+)")
VERSIONS = 3
"""Compiled versions of one function from which it is called recompiling: training and evaluation make two."""
SILENCE = 500_000_000
"""ns without any event of the host, in a step that runs compiled code: torch.compile records nothing of its work."""


@dataclass(frozen=True)
class Pattern:
    """What was seen: the percent of the step that it may account for, the evidence, and what may help."""

    name: str
    share: float
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}, {self.share:.1f} % of the step: {self.evidence}. Remedy: {self.remedy}."


def find(found: Partition) -> list[Pattern]:
    """The patterns of a partition, the largest share first."""
    seen = [pattern for check in (_launch_bound, _small_kernels, _recompiling) if (pattern := check(found)) is not None]
    return sorted(seen, key=lambda pattern: -pattern.share)


def _launch_bound(found: Partition) -> Pattern | None:
    late = sum(found.parts[CAUSES[cause]] for cause in HOST_CAUSES) - sum(found.after.values())
    share = 100 * late / found.length
    lengths = _kernel_us(found)
    if share < LAUNCH_SHARE or not len(lengths) or np.median(lengths) > SHORT_US:
        return None
    return Pattern("launch-bound", share,
                   f"{len(lengths) / found.windows:,.0f} kernels a step with a median of {np.median(lengths):.1f} us "
                   "run faster than the host launches them, and the GPU waits "
                   f"{late / found.windows / 1e6:.1f} ms a step",
                   "compile the model, or record the step as a CUDA graph")


def _small_kernels(found: Partition) -> Pattern | None:
    lengths = _kernel_us(found)
    small = lengths < SMALL_US
    many = small.sum() >= SMALL_KERNELS * found.windows and 100 * small.mean() >= SMALL_SHARE
    if not many:
        return None
    ended, trace, rows = found.gaps.ended_by, found.trace, found.rows
    of_small = (trace.kind[rows] == KERNEL) & (trace.end[rows] - trace.start[rows] < 1e3 * SMALL_US)
    gaps = found.gaps.times[(ended >= 0) & of_small[ended]]
    share = 100 * (lengths[small].sum() * 1e3 + intervals.total(gaps)) / found.length
    return Pattern("small kernels", float(share),
                   f"{small.sum() / found.windows:,.0f} of {len(lengths) / found.windows:,.0f} kernels a step are "
                   f"shorter than {SMALL_US:.0f} us, about what one launch costs; with the gaps before them",
                   "fuse them (torch.compile, a fused or foreach optimizer), or do in one call what a loop does")


def _recompiling(found: Partition) -> Pattern | None:
    trace = found.trace
    host = np.isin(trace.kind, (LAUNCH, OPERATOR, ANNOTATION)) & (trace.end > found.window[0]) & \
        (trace.start < found.window[1])
    compiling = intervals.clip(_union(found, host & (trace.named(COMPILING) | trace.named(LOADING))), *found.window)
    evidence = []
    if intervals.total(compiling):
        evidence.append(f"compiling or loading kernels takes {intervals.total(compiling) / 1e6:.1f} ms of the steps")
    versions: dict[str, set[str]] = {}
    for name in trace.names:
        if region := REGION.search(name):
            versions.setdefault(region[1], set()).add(region[2])
    most = max(versions.items(), key=lambda item: len(item[1]), default=("", set()))
    if len(most[1]) >= VERSIONS:
        evidence.append(f"{len(most[1])} compiled versions of one function (frame {most[0]}) run")
    silent = intervals.EMPTY
    if (host & trace.named(COMPILED)).any():
        events = _union(found, host & ~((trace.kind == ANNOTATION) & (trace.end - trace.start > SILENCE)))
        silent = intervals.subtract(np.array([found.window]), events)
        silent = silent[silent[:, 1] - silent[:, 0] > SILENCE]
        if len(silent):
            evidence.append(f"the host shows nothing for {intervals.total(silent) / 1e9:.1f} s in a step that runs "
                            "compiled code")
    if not evidence:
        return None
    share = 100 * intervals.total(intervals.joined([compiling, silent])) / found.length
    return Pattern("recompiling", share, "; ".join(evidence),
                   "record after the warm-up; pad shapes to a few sizes or mark them dynamic (TORCH_LOGS=recompiles "
                   "says which change)")


def _kernel_us(found: Partition) -> np.ndarray:
    """Microseconds of each kernel that begins in the window."""
    rows = found.rows[in_window(found)]
    rows = rows[found.trace.kind[rows] == KERNEL]
    return (found.trace.end[rows] - found.trace.start[rows]) / 1e3


def _union(found: Partition, rows: np.ndarray) -> intervals.Set:
    return intervals.union(found.trace.start[rows], found.trace.end[rows])
