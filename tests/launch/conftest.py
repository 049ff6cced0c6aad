"""A place for real jobs: a folder of runs, and rank scripts that can be imported."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A folder of runs for a test module, with the scripts under ranks/ importable by the ranks."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_RUNS", str(folder))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield folder
