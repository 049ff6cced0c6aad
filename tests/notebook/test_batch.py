"""The playbook where nobody prepared anything for it: sources that can't be written, a foreign folder, no widgets."""

import os
import shutil
import subprocess
import sys

import pytest

from lfhelpers import runs
from tests.notebook.lessons import lesson, save

CELLS = [
    "import lfhelpers.notebook as tools\n\nloaded = [getattr(tools, name) for name in tools.__all__]",
    "import lfhelpers as lf\n\nrun = lf.recorded('h200x1/full')\nrecord('speed', run.summary['samples_per_s'])",
    "from lfhelpers.notebook import show, step_bars\n\nshow(*step_bars({'full': lf.diagnose(run).ms}, unit='ms'))",
]


@pytest.fixture
def checkout(tmp_path):
    """The project's sources with one lesson, none of which can be written."""
    source = runs.project()
    copy = tmp_path / "checkout"
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source / "lfhelpers", copy / "lfhelpers", ignore=hidden)
    shutil.copytree(source / "runs" / "reference" / "h200x1", copy / "runs" / "reference" / "h200x1")
    shutil.copy(source / "pyproject.toml", copy)
    (copy / "notebooks").mkdir()
    save(copy / "notebooks", "00_lesson", lesson(*CELLS))
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield copy
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)


@pytest.fixture
def obeying():
    """What begins a command that obeys the rights of files, which root doesn't."""
    if os.geteuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("root may write everywhere, and no setpriv is here to take that right from a process")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def test_the_playbook_plays_from_read_only_sources_anywhere_without_ipywidgets(tmp_path, checkout, obeying):
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "ipywidgets.py").write_text("raise ImportError('ipywidgets is not installed')\n")
    given = {name: value for name, value in os.environ.items() if not name.startswith("LFHELPERS_")}
    environment = given | {"PYTHONPATH": f"{tmp_path / 'missing'}{os.pathsep}{checkout}"}

    def playbook(folder, **more):
        return subprocess.run([*obeying, sys.executable, "-m", "lfhelpers", "playbook", "--profile", "smoke"],
                              cwd=folder, env=environment | more, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL)

    refused = playbook("/")
    assert refused.returncode == 2 and "give another place with --out or LFHELPERS_RUNS" in refused.stderr
    first = playbook("/", LFHELPERS_RUNS=str(tmp_path / "runs"))
    assert first.returncode == 0, first.stdout + first.stderr
    page = (tmp_path / "runs" / "playbook" / "00_lesson" / "report.html").read_text()
    assert "Largest part of the step: full spends" in page
    again = playbook(tmp_path, LFHELPERS_RUNS=str(tmp_path / "runs"))
    assert again.returncode == 0 and "00_lesson  fresh, not played again" in again.stdout
