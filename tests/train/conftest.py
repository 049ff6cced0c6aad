"""Shards of the toy workload, and run folders that go with the test."""

import functools

import numpy as np
import pytest

from lfhelpers import runs
from lfhelpers.data.shards import write
from lfhelpers.recipe import recipe


def toy_members(index):
    return {"state.f32": np.random.default_rng(index).normal(size=8).astype("<f4").tobytes()}


@pytest.fixture(scope="session")
def toy_shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy") / "shards"
    write(folder, toy_members, 67, shard_mb=0.02, progress=False)
    return folder


@pytest.fixture
def toy_job(toy_shards, tmp_path, monkeypatch):
    """A recipe on the toy shards, changed by overrides; runs go to a folder of the test's own."""
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path / "runs"))
    return functools.partial(
        recipe, "competent", f"data.path={toy_shards}", "workload.use=tests.train.toy:Toy", "batch.micro=8", "steps=12",
        "data.workers=0", "data.augment=false", "log.skip=2", "device=cpu")


@pytest.fixture
def toy_run(toy_job):
    """Train the toy in this process: returns (run, summary)."""
    from lfhelpers.train.loop import train
    from tests.train.toy import ALONE

    def start(*overrides, **options):
        run = runs.create(toy_job(*overrides))
        return run, train(run.recipe, run, ALONE, **options)
    return start
