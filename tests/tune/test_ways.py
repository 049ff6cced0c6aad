"""The search beside one knob at a time and a trace's promise, over made-up trials whose product is known."""

import pytest

from lfhelpers.diagnose.ceilings import Ceilings
from lfhelpers.diagnose.timelines import Serial
from lfhelpers.recipe import recipe
from lfhelpers.tune.report import Result
from lfhelpers.tune.ways import of_lines, ways
from tests.tune.made_up import Jobs, search


def line(loader, compiled, rate, ended="done", took_over=False):
    return {"positions": {"loader": loader, "compile": compiled}, "samples/s": rate if ended == "done" else None,
            "until stopped": rate if ended == "slower" else None, "ended": ended, "took over": took_over,
            "knobs": f"loader {loader}, compile {compiled}"}


BASE = line("a", "none", 100.0, took_over=True)


def test_knobs_that_act_on_each_other_win_more_together_than_their_product():
    """Each alone wins a tenth or nothing; together they double the rate, which only the search has seen."""
    lines = [BASE, line("b", "none", 110.0), line("a", "blocks", 98.0, "slower"),
             line("b", "blocks", 200.0, took_over=True)]
    found, alone = of_lines(lines)
    assert found["takes"] == "loader b, compile blocks"
    assert (found["promised"], found["won"], found["jobs"]) == (None, 2.0, 4)
    assert (alone["takes"], alone["promised"], alone["won"], alone["jobs"]) == ("loader b", 1.1, 1.1, 3)


def test_a_product_that_no_trial_has_tried_is_a_promise_alone():
    alone = of_lines([BASE, line("b", "none", 110.0), line("a", "blocks", 150.0, took_over=True)])[1]
    assert alone["promised"] == pytest.approx(1.65) and alone["won"] is None


def test_what_is_over_a_limit_wins_nothing():
    found, alone = of_lines([BASE, line("b", "none", 300.0, "over its limits"), line("a", "blocks", 90.0)])
    assert (found["won"], alone["takes"], alone["promised"]) == (1.0, "as the base", 1.0)


def test_what_a_trace_promises_stands_beside_the_trial_that_keeps_the_promise(runs_root):
    """A step of which half is pointwise work: compiled blocks are promised, and one of the trials has them."""
    study = search("ways", 4, Jobs())
    study.starts = {"ceiling of pointwise": recipe("competent", "compile.scope=blocks")}
    rows = ways(Result(study.go()), Ceilings(Serial(20.0, {"pointwise": 10.0}, {}), "made up"))
    assert [row["way"] for row in rows] == ["search", "one knob at a time", "what a trace promises"]
    assert rows[2]["takes"] == "fused pointwise kernels" and 1 < rows[2]["promised"] < 2
    assert rows[2]["won"] == pytest.approx(2.0, rel=0.01) and rows[2]["jobs"] == 1
    nothing = ways(Result(study), Ceilings(Serial(20.0, {}, {}), "made up"))[2]
    assert nothing["takes"].startswith("nothing") and nothing["promised"] == 1.0
