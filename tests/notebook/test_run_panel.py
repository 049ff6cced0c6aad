"""The panel of a run, while it runs and afterwards: figures of its folder, read out without colours."""

import os
import sys
from types import SimpleNamespace

import pytest

from lfhelpers import runs
from lfhelpers.notebook import run_panel
from lfhelpers.notebook.run_panel import Follower, bar, curve, panel
from lfhelpers.recipe import recipe

ROW = {"loss": 2.0, "samples": 64, "step_ms": 100.0, "ms": {"data_wait": 40.0, "forward": 60.0}, "probe": False}


@pytest.fixture
def run(runs_root):
    run = runs.create(recipe(steps=1000))
    run.set_status("running", pid=os.getpid())
    return run


def test_before_its_first_step_a_run_says_that_it_starts(run, monkeypatch):
    still = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(sys.modules["lfhelpers.launch.watch"], "time", still)  # the name itself is the verb's
    now = Follower(run).now()
    assert (now.state, now.step, now.total, now.losses) == ("running", 0, 1000, ())
    html, text = panel(now)
    assert "starting, 0 s" in html and text.startswith(f"{run.id}: starting, 0 s")


def test_while_it_runs_the_panel_says_how_far_how_fast_and_how_busy(run):
    follower = Follower(run)
    run.append_steps([ROW | {"step": step, "loss": 2.0 - step / 100} for step in range(1, 11)])
    now = follower.now()
    assert now.figures == {"loss": "1.9000", "samples/s": "640", "data wait": "40 %", "left": "0:01:39"}
    assert 0 <= now.load["CPU"] <= 100
    html, _ = panel(now)
    assert 'max="1000" value="10"' in html and "mean step of 100 ms: forward 60 %, data wait 40 %" in html
    run.append_steps([ROW | {"step": 11, "loss": 1.5}])
    assert follower.now().losses == ((10, 1.9), (11, 1.5))
    assert Follower(run).now().losses[0] == (1, 1.99), "one that joins later shows the run from its beginning"


def test_steps_that_a_resumed_run_writes_again_are_shown_once(run):
    run.append_steps([ROW | {"step": step} for step in range(1, 6)])
    follower = Follower(run)
    run.truncate_steps(3)
    run.append_steps([ROW | {"step": 4, "loss": 7.0}])
    assert follower.now().losses == ((1, 2.0), (2, 2.0), (3, 2.0), (4, 7.0))


def test_the_curve_of_a_long_run_stays_small(run, monkeypatch):
    monkeypatch.setattr(run_panel, "MOST", 20)
    follower = Follower(run)
    for step in range(1, 3 * run_panel.MOST):
        run.append_steps([ROW | {"step": step}])
        losses = follower.now().losses
    assert len(losses) <= 2 * run_panel.MOST and losses[-1][0] == 3 * run_panel.MOST - 1


def test_a_run_that_ended_is_shown_by_its_summary():
    run = runs.recorded("h200x1/as_found")
    used, report = run.summary["utilisation"], run.summary["report"]
    now = run_panel.ended(run)
    assert now.load == {"CPU": used["cpu_percent"], "GPU": used["gpu_percent"]}
    html, text = panel(now)
    assert "done: 50/50 steps" in html and f"GPU</small><br><strong>{used['gpu_percent']:.0f} % busy" in html
    step, waited = sum(report["ms"].values()), report["percent"]["data_wait"]
    assert f"mean step of {step:.0f} ms: data wait {waited:.0f} %" in text


def test_one_that_left_no_summary_is_shown_by_its_last_steps(run):
    run.append_steps([ROW | {"step": 1}])
    run.set_status("stopped", "by hand")
    assert "stopped at step 1/1000: by hand" in panel(run_panel.ended(run))[1]


def test_pictures_are_told_in_words_and_nothing_is_drawn_of_nothing():
    assert 'aria-label="mean step of 10 ms: forward 90 %, data wait 10 %"' in bar({"data_wait": 1.0, "forward": 9.0})
    assert bar({}) == "" and curve([(1, 2.0)]) == "" and curve([(1, 2.0), (2, float("nan"))]) == ""
    assert 'aria-label="loss 2 at step 1, 1 at step 9"' in curve([(1, 2.0), (9, 1.0)])
