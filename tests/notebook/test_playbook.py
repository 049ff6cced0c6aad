"""Every lesson of the playbook, played by the real runner in its smoke profile: its results, and its exercises."""

import json

import pytest

from lfhelpers.notebook import catalogue, runner

SHORTER = {"00_start_here": {"steps": "16"}}
"""Parameters of lessons that play longer than what they show here needs."""


@pytest.fixture(scope="module")
def root(tmp_path_factory, rendered):
    """One root of runs for all lessons of a process; the default dataset, a quarter of its size, is common to all."""
    folder = tmp_path_factory.mktemp("playbook")
    (folder / "data").mkdir()
    (folder / "data" / "tabletop").symlink_to(rendered("default", 512))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_RUNS", str(folder))
        patch.delenv("OMP_NUM_THREADS", raising=False)
        yield folder


@pytest.mark.long
@pytest.mark.timeout(runner.TIMEOUT["smoke"])
@pytest.mark.parametrize("path", catalogue.select(), ids=lambda path: path.stem)
def test_a_lesson_plays_to_its_end(path, root):
    assert runner.play([path.stem], SHORTER.get(path.stem, {}), profile="smoke", out=root / "out") == 0
    results = json.loads((root / "out" / path.stem / "results.json").read_text())
    assert results["results"], "a lesson records what it found"
    assert (root / "out" / path.stem / f"{path.stem}.html").exists()
