"""Jobs of a long comparison, done once: a comparison that was stopped goes on with the runs that it has.

They count only for the same code, machine and settings, whose fingerprint names the file in which they are kept.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.launch import launch
from lfhelpers.launch.prepare import prepare
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run


@dataclass
class Jobs:
    """Names of jobs with the runs that they became, and the sentences of those that failed in this process."""

    file: Path
    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, settings: Any) -> Jobs:
        """Those of this comparison, `settings` being all that it depends on, by this code on this machine."""
        facts = [repr(settings), hardware.describe()["hardware"], hardware.commit(runs.project())]
        key = hashlib.sha256(orjson.dumps(facts)).hexdigest()[:12]
        file = runs.root() / "jobs" / f"{kind}-{key}.json"
        kept = orjson.loads(file.read_bytes()) if file.exists() else {}
        return cls(file, {name: run for name, run in kept.items() if (runs.root() / run / "summary.json").exists()})

    def run(self, name: str, job: Recipe, nproc: int) -> Run:
        """The run of this name, made now where there is none yet. Raises LfError where it fails, or has failed."""
        if name in self.failed:
            raise LfError(self.failed[name])
        if name not in self.done:
            try:
                self.done[name] = launch(prepare(job, nproc), nproc, watch=False).id
            except LfError as error:
                self.failed[name] = str(error)
                raise
            self.file.parent.mkdir(parents=True, exist_ok=True)
            runs.write_atomic(self.file, orjson.dumps(self.done, option=orjson.OPT_INDENT_2))
        return runs.load(self.done[name])
