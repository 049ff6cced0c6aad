"""Why a run is as slow as it is. The two verbs are here; nothing in them imports torch. More are in diagnose.verbs."""

from __future__ import annotations

import os

from lfhelpers.diagnose.report import Comparison, StepReport
from lfhelpers.runs import Run, load


def diagnose(run: str | os.PathLike[str] | Run) -> StepReport:
    """The step report of a run, given as Run, folder, name or part of a name; LfError where it has no steps yet."""
    return StepReport.from_run(load(run))


def compare(a: str | os.PathLike[str] | Run, b: str | os.PathLike[str] | Run) -> Comparison:
    """The step reports of two runs side by side, printable; `.speedup` is samples/s of b over a."""
    return Comparison(diagnose(a), diagnose(b))
