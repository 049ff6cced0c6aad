"""A reader's solved exercises are kept in a file of theirs, and shown in the first lesson."""

import json
import multiprocessing

import pytest

from lfhelpers.errors import LfError
from lfhelpers.notebook import answers, results
from lfhelpers.notebook.exercises import check


@pytest.fixture
def lesson(monkeypatch, runs_root):
    """As JupyterLab starts the kernel of the first lesson."""
    monkeypatch.setenv(answers.SESSION, "notebooks/00_start_here.ipynb")
    return "00_start_here"


def try_it(name, answer):
    check(name, answer, lambda given: given == 3, hint="count them")


def test_tries_are_counted_and_what_was_passed_stays_passed(lesson):
    assert answers.solved(lesson, 2) == "0 of 2"
    for answer in (..., 4, 3, 5):
        try_it("1", answer)
    kept = json.loads(answers.path().read_text())
    assert kept[lesson]["1"]["tries"] == 3, "the untouched stub is no try"
    assert kept[lesson]["1"]["passed"] and answers.solved(lesson, 2) == "1 of 2"


def test_a_copy_of_a_lesson_counts_as_the_lesson(lesson, monkeypatch):
    try_it("1", 3)
    monkeypatch.setenv(answers.SESSION, "mine/00_start_here-Copy1.ipynb")
    try_it("2", 3)
    try_it("1", 3)
    assert answers.solved(lesson, 3) == "2 of 3" and answers.solved("01_diagnosis", 3) == "0 of 3"


def test_the_runner_leaves_the_readers_file_alone(lesson, monkeypatch, tmp_path):
    monkeypatch.setenv(results.RESULTS_FILE, str(tmp_path / "results.json"))
    monkeypatch.setattr(results, "BOOK", results.Book())
    try_it("1", 3)
    assert not answers.path().exists()


def test_lessons_that_are_open_at_once_do_not_lose_answers(lesson):
    workers = [multiprocessing.get_context("fork").Process(target=answers.keep, args=(str(number), True))
               for number in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert answers.solved(lesson, 12) == "12 of 12"


def test_an_answer_is_checked_also_where_it_can_not_be_kept(lesson, runs_root, monkeypatch, capsys):
    runs_root.mkdir()
    answers.path().write_text("{")
    try_it("1", 3)
    said = capsys.readouterr().out
    assert "exercises.json is damaged" in said and "Exercise 1: passed." in said
    assert answers.path().read_text() == "{", "it may still be mended"
    with pytest.raises(LfError, match="mend or delete it"):
        answers.solved(lesson, 3)
    monkeypatch.delenv(answers.SESSION)
    try_it("1", 3)
    assert "this front end doesn't say which notebook it shows" in capsys.readouterr().out
