"""A run's own traces: three steps of each rank, readable by `lfhelpers diagnose`, and out of the statistics."""

import pytest

from lfhelpers.diagnose.trace import diagnose_trace
from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from lfhelpers.train.traces import profiled_steps


def test_the_last_steps_before_the_probe_are_recorded_and_not_timed(toy_run):
    run, summary = toy_run("log.profile=true", "steps=12")
    assert summary["traces"]["steps"] == [9, 10, 11] and 0 < summary["traces"]["mb"] < 100
    assert [row["step"] for row in run.steps() if row["probe"]] == [8, 9, 10, 11, 12], "one of warm-up, and the probe"
    assert summary["steps"]["timed"] == 12 - 2 - 5
    assert [path.name for path in (run.path / "traces").iterdir()] == ["rank-0.json.gz"]
    report = diagnose_trace(run.path / "traces").main
    assert (report.trace.rank, report.gpu, report.found.steps.found) == (0, False, 3)
    assert sum(report.percent.values()) == pytest.approx(100)
    assert report.percent["forward"] > 0 and report.percent["backward"] > 0 and report.percent["optimizer"] > 0


def test_nothing_is_recorded_unless_asked(toy_run):
    run, summary = toy_run("steps=6")
    assert "traces" not in summary and not list((run.path / "traces").glob("*"))
    assert len(profiled_steps(run.recipe)) == 0


def test_without_a_probe_the_very_last_steps_are_recorded(toy_run):
    run, summary = toy_run("log.profile=true", "log.probe=false", "steps=6")
    assert summary["traces"]["steps"] == [4, 5, 6]
    assert (run.path / "traces" / "rank-0.json.gz").exists()


def test_too_few_steps_are_refused_by_name():
    with pytest.raises(LfError, match=r"log.profile needs steps >= 6: .* and one for log.probe"):
        recipe("competent", "log.profile=true", "steps=5")
    assert recipe("competent", "log.profile=true", "log.probe=false", "steps=5").log.profile
