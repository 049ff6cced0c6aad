"""Why a step was slow, from a profiler's trace: any Kineto or Chrome trace, .json or .json.gz, of one rank or several.

Reading and dividing need no torch. The verbs are `diagnose_trace` and `compare_traces`.
"""

from __future__ import annotations

import os
from pathlib import Path

from lfhelpers.diagnose.trace.compare import TraceComparison
from lfhelpers.diagnose.trace.load import diagnose_trace as _diagnose
from lfhelpers.diagnose.trace.report import Diagnosis, TraceReport

__all__ = ["Diagnosis", "TraceComparison", "TraceReport", "compare_traces", "diagnose_trace"]


def diagnose_trace(path: str | os.PathLike[str]) -> Diagnosis:
    """The diagnosis of a trace, or of a folder of the traces of one job's ranks; LfError where it can't be read."""
    return _diagnose(Path(path))


def compare_traces(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> TraceComparison:
    """Two diagnoses side by side; `.by_median` is the speed-up of b over a."""
    return TraceComparison(diagnose_trace(a), diagnose_trace(b))
