"""An exercise's check refuses the stub and accepts the solution, or the notebook fails when it is played."""

import pytest

from lfhelpers.errors import LfError
from lfhelpers.notebook import answers, exercises, results
from lfhelpers.notebook.exercises import check, solution
from tests.notebook.lessons import code, notebook


@pytest.fixture
def headless(tmp_path, monkeypatch):
    """As the runner plays a notebook."""
    monkeypatch.setenv(results.RESULTS_FILE, str(tmp_path / "results.json"))
    book = results.Book(tmp_path / "results.json")
    monkeypatch.setattr(results, "BOOK", book)
    return book


def test_in_the_runner_the_solution_takes_the_stubs_place_and_proves_the_check(headless):
    check("1", solution(..., 3), lambda answer: answer > 2, hint="count them")
    assert headless.exercises == {"1": {"stub": False, "solution": True}}


@pytest.mark.parametrize(("passes", "sentence"), [
    (lambda answer: True, "exercise 1: its check passes on the untouched stub"),
    (lambda answer: answer == 4, "exercise 1: its own solution fails the check"),
    (lambda answer: answer.missing, "exercise 1: its own solution fails the check"),
])
def test_a_check_that_proves_nothing_stops_the_notebook(headless, passes, sentence):
    with pytest.raises(LfError, match=sentence):
        check("1", solution(..., 3), passes, hint="count them")


def test_in_jupyterlab_the_solution_stays_away_and_a_readers_answer_is_kept(capsys, runs_root, monkeypatch):
    monkeypatch.setenv(answers.SESSION, "00_start_here.ipynb")
    assert solution(..., 3) is ...
    assert solution(5, 3) == 5
    check("1", ..., lambda answer: answer == 3, hint="count them")
    check("1", 5, lambda answer: answer == 3, hint="count them")
    check("1", "x", lambda answer: answer > 3, hint="count them")
    check("1", 3, lambda answer: answer == 3, hint="count them", why="There are three.")
    assert capsys.readouterr().out.splitlines() == [
        "Exercise 1: no answer yet. Hint: count them",
        "Exercise 1: not yet. Hint: count them",
        "Exercise 1: not yet (TypeError: '>' not supported between instances of 'str' and 'int'). Hint: count them",
        "Exercise 1: passed.",
    ]


def test_a_readers_answer_is_kept_in_the_runner_too(headless):
    assert solution(5, 3) == 5


@pytest.mark.parametrize(("proofs", "complaints"), [
    ({"1": {"stub": False, "solution": True}}, []),
    ({}, ["cells tagged exercise: 1, exercises checked: 0"]),
    ({"1": {"stub": True, "solution": True}}, ["exercise 1: the stub passes its own check"]),
    ({"1": {"stub": False, "solution": False}}, ["exercise 1: the solution fails"]),
])
def test_the_runner_counts_proofs_against_exercise_cells(proofs, complaints):
    assert exercises.unproven(notebook(code("answer = ...", "exercise")), {"exercises": proofs}) == complaints


@pytest.mark.parametrize(("answer", "said"), [
    ({"samples": 128, "days": 7.0}, "not yet (wrong: days is not 7)"),
    ({"samples": 128}, "not yet (KeyError: 'days')"),
    ({"samples": 128, "days": 6.1}, "passed"),
    (lambda a, b: a + b, "passed"),
    (lambda a, b: a * b, "not yet (wrong: 1, 2 gives 2)"),
    (lambda a: a, "not yet (TypeError"),
])
def test_a_hint_names_the_quantity_that_is_wrong(answer, said, capsys, runs_root):
    right = {(1, 2): 3, (2, 2): 4} if callable(answer) else {"samples": 128, "days": 6.08}
    check("1", answer, right, hint="count them", near=0.02)
    assert f"Exercise 1: {said}" in capsys.readouterr().out


def test_a_check_of_ones_own_may_name_it_too(capsys, runs_root):
    check("1", "mine", lambda answer: "batch.micro", hint="count them")
    assert "Exercise 1: not yet (wrong: batch.micro). Hint: count them" in capsys.readouterr().out


def test_the_stub_does_not_pass_a_check_by_values(headless):
    check("1", solution(..., {"days": 6.08}), {"days": 6.08}, hint="count them")
    assert headless.exercises == {"1": {"stub": False, "solution": True}}
