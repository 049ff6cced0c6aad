"""A place for real jobs: a folder of runs, rank scripts that can be imported, and a workload of no weight."""

import os
from pathlib import Path

import pytest

from lfhelpers.data.shards import write
from lfhelpers.recipe import recipe
from tests.train.conftest import toy_members


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A folder of runs for a test module, with the scripts under ranks/ importable by the ranks."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_RUNS", str(folder))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """The recipe of a job that trains the toy for 12 steps on a CPU; runs take cwd, the project, onto their path."""
    folder = tmp_path_factory.mktemp("toy") / "shards"
    write(folder, toy_members, 67, shard_mb=0.02, progress=False)
    return recipe("competent", f"data.path={folder}", "workload.use=tests.train.toy:Toy", "batch.micro=8", "steps=12",
                  "data.workers=0", "data.augment=false", "log.skip=2", "log.probe=false", device="cpu")
