"""A winner counts when runs of its own and its gate say so; the search's figures alone never do."""

import pytest

from lfhelpers.bench import jobs as bench_jobs
from lfhelpers.levers.table import Machine
from lfhelpers.quality import levers as gates
from lfhelpers.recipe import diff, recipe
from lfhelpers.tune.report import Result
from lfhelpers.tune.verify import NONE, WINNER, verify
from tests.tune import made_up
from tests.tune.made_up import Jobs, search, written


@pytest.fixture
def fresh(runs_root, monkeypatch):
    """Fresh runs are made up too; their losses and rates can be planted, and the gradients' errors are 1 % of theirs.
    """
    started = []
    planted = {"losses": lambda job, step: 1 / step, "rate": made_up.rate, "errors": {}}

    def launch(job, nproc, watch):
        started.append(job)
        return written(job, planted["losses"], planted["rate"](job))

    monkeypatch.setattr(bench_jobs, "prepare", lambda job, nproc: job)
    monkeypatch.setattr(bench_jobs, "launch", launch)
    monkeypatch.setattr(gates, "gradient_errors", lambda recipes: dict.fromkeys(recipes, 0.01) | planted["errors"])
    return started, planted


def two(name, field, value, monkeypatch, **options):
    """A study of two trials, the second of which is twice as fast by this value of this field."""
    monkeypatch.setattr(made_up, "FASTER", {field: (value, 2.0)})
    found = search(name, 2, Jobs(), **options)
    found.starts = {"faster": recipe("competent", f"{field}={value}")}
    return found.go()


def test_the_winner_is_run_again_in_turns_and_written_as_a_recipe(fresh):
    started, _ = fresh
    found = search("won", 12, Jobs()).go()
    result = Result(found, verify(found))
    assert [job.name for job in started] == ["base", "winner", "winner", "base"]
    assert result.verified.ratio == pytest.approx(3.3) and "gradients 1.00 times as far" in result.sentence
    winner = recipe(found.place / WINNER)
    assert winner == result.recipe and winner.steps == recipe().steps
    assert {"data.loader", "compile.scope", "frozen.packed"} <= set(diff(recipe(), winner))
    checks = result.record().checks
    assert (checks["trials"], checks["knobs"], checks["winner_gates_passed"]) == (12, 5, 1)
    verify(found)
    assert len(started) == 4, "what has been run is not run again"


def test_over_the_hand_set_recipe(fresh):
    found = search("over", 12, Jobs(), base="full", knobs=("loader", "compile", "micro-batch")).go()
    assert Result(found, verify(found)).record().checks["winner_over_full"] == pytest.approx(1.5)
    better = search("starts", 12, Jobs())
    better.starts = {"full": recipe("full", "data.loader=webdataset", "frozen.packed=false")}
    better.go()
    assert Result(better, verify(better)).record().checks["winner_over_full"] == pytest.approx(3.3 / 2)


def test_luck_is_not_a_win(fresh):
    _, planted = fresh
    planted["rate"] = lambda job: 100.0
    found = search("luck", 6, Jobs()).go()
    verified = verify(found)
    assert verified.trial is None and verified.sentence.startswith(f"{NONE}. trial ")
    assert "was faster in the search alone: 1.000 times the base" in verified.refused[0]
    assert not (found.place / WINNER).exists() and Result(found, verified).recipe == recipe()
    assert Result(found, verified).record().checks["winner_gates_passed"] == 0


def test_a_winner_that_fails_its_gate_gives_way_to_the_one_before_it(fresh, monkeypatch):
    found = search("gives-way", 12, Jobs()).go()
    compiled = [found.job(trial) for trial in found.finished if trial.user_attrs.get("took_over")][-1]
    monkeypatch.setattr(gates, "gradient_errors", lambda recipes: {
        name: 0.02 if job.flat() == compiled.flat() else 0.01 for name, job in recipes.items()})
    verified = verify(found)
    assert "does not pass the gate reordered: gradients 2.00 times" in verified.refused[0]
    assert verified.trial not in (None, found.incumbent.number) and verified.ratio < 3.3


def test_nothing_faster_keeps_the_base(fresh, monkeypatch):
    started, _ = fresh
    monkeypatch.setattr(made_up, "FASTER", {})
    assert verify(search("nothing", 4, Jobs()).go()).sentence == f"{NONE}."
    assert started == []


def test_an_exact_winner_answers_by_equal_losses_of_runs_in_a_fixed_order(fresh, monkeypatch):
    started, planted = fresh
    found = two("exact", "data.workers", 2, monkeypatch, knobs=("workers",))
    assert verify(found).verdict.found.endswith("losses are equal to the bit")
    assert [job.precision.deterministic for job in started[-2:]] == [True, True]
    planted["losses"] = lambda job, step: 1 / step + 1e-9 * (job.data.workers == 2)
    again = verify(found, confirm=("data.prefetch=4",))  # other runs, as on the full set
    assert again.trial is None and "does not pass the gate exact: " in again.refused[0]


def test_a_winner_that_changes_what_is_learnt_answers_by_seeds(fresh, monkeypatch):
    started, planted = fresh
    planted["losses"] = lambda job, step: (1 + 0.1 * job.seed) / step * (1 + 1e-3 * (job.seed % 3) * (
        job.ddp.hook != "none"))
    found = two("changed", "ddp.hook", "bf16", monkeypatch, where=Machine("cpu", 2), nproc=2, allow="changed",
                knobs=("compressed exchange",))
    verified = verify(found)
    assert verified.gate == "changed" and verified.verdict.found.endswith("n=5 pairs, power 100%: equal within the "
                                                                          "margin")
    assert sorted({job.seed for job in started}) == [0, 1, 2, 3, 4]
