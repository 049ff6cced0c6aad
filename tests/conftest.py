"""What tests of several areas share: a small tabletop set, and a root of runs of the test's own."""

import os
import tempfile

import pytest

CACHE = tempfile.TemporaryDirectory(prefix="lfhelpers-tests-")  # not the user's own; goes with the process
os.environ.setdefault("LFHELPERS_CACHE", CACHE.name)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests share few cores with the jobs they start


@pytest.fixture(scope="session")
def tabletop_shards(tmp_path_factory):
    """256 rendered samples with no distractors, in several shards."""
    from lfhelpers.launch.prepare import make_tabletop

    folder = tmp_path_factory.mktemp("tabletop") / "shards"
    make_tabletop(folder, 256, shard_mb=8, jobs=2, distractors=0)
    return folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """The recipe of a job that trains a toy workload for 12 steps on a CPU; its ranks must start in the project."""
    from lfhelpers.data.shards import write
    from lfhelpers.recipe import recipe
    from tests.train.conftest import toy_members

    folder = tmp_path_factory.mktemp("toy-job") / "shards"
    write(folder, toy_members, 67, shard_mb=0.02, progress=False)
    return recipe("competent", f"data.path={folder}", "workload.use=tests.train.toy:Toy", "batch.micro=8", "steps=12",
                  "data.workers=0", "data.augment=false", "log.skip=2", "log.probe=false", device="cpu")


@pytest.fixture
def runs_root(tmp_path, monkeypatch):
    """The folder in which this test's runs are made."""
    root = tmp_path / "runs"
    monkeypatch.setenv("LFHELPERS_RUNS", str(root))
    return root


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""
    from lfhelpers import cli

    def run(*words):
        monkeypatch.setattr("sys.argv", ["lfhelpers", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()
    return run
