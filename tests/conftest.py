"""What tests of several areas share: a small tabletop set, and a root of runs of the test's own."""

import os
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings

CACHE = tempfile.TemporaryDirectory(prefix="lfhelpers-tests-")  # not the user's own; goes with the process
os.environ.setdefault("LFHELPERS_CACHE", CACHE.name)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests share few cores with the jobs they start
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # others use the cores
settings.load_profile("suite")
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, shells have it ignored, by children too


def pytest_collection_modifyitems(items):
    """What takes minutes comes first, so that no process of pytest is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def rendered(tmp_path_factory):
    """Tabletop sets by name, each rendered once for all processes of pytest; who finds another at it waits."""
    from lfhelpers.data.locks import Locked
    from lfhelpers.launch.prepare import make_tabletop

    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder(name, samples, **options):
        with Locked(common / f"{name}.lock", os.O_RDWR | os.O_CREAT) as lock:
            lock.exclusive(wait=True)
            if not (common / name / "manifest.json").exists():
                make_tabletop(common / name, samples, shard_mb=8, jobs=2, **options)
        return common / name
    return folder


@pytest.fixture(scope="session")
def tabletop_shards(rendered):
    """256 rendered samples with no distractors, in several shards."""
    return rendered("tabletop", 256, distractors=0)


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
