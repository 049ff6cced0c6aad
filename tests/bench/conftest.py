from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lfhelpers.bench import jobs
from lfhelpers.errors import LfError
from lfhelpers.quality import levers as gates
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from tests.bench.made_up import written


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs appear at once, as made_up.SPEED has them; `losses` may spoil a job's, `failing` names those that fail."""
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    monkeypatch.setattr(jobs, "prepare", lambda job, nproc: job)
    monkeypatch.setattr(gates, "gradient_errors", lambda recipes, timeout=0: dict.fromkeys(recipes, 0.01))
    started: list[str] = []

    def use(losses: Callable[[Recipe, int], float] = lambda job, step: 1 / step, failing: str = "none") -> list[str]:
        def launch(job: Recipe, nproc: int, watch: bool) -> Run:
            started.append(job.name)
            if failing in job.name:
                raise LfError(f"{job.name}: no memory.")
            return written(job, losses)

        monkeypatch.setattr(jobs, "launch", launch)
        return started

    return use
