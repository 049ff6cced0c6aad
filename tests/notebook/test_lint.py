"""Each rule of form refuses what it is for, and lets the good neighbour pass."""

import nbformat
import pytest

from lfhelpers.errors import LfError
from lfhelpers.notebook import catalogue, lint
from tests.notebook.lessons import PARAMETERS, code, lesson, notebook, save, text

STUB, CHECK = code("answer = ...  # which part", "exercise"), code('check("1", answer, lambda a: a == 3, hint="count")')
SOLUTION = code("answer = solution(answer, 3)", "solution", folded=True)


def messages(rule, made):
    return [finding.message for finding in rule(made)]


def good_lesson():
    """A lesson of 25 cells that breaks no rule."""
    texts = [text(f"Step {number} says why.") for number in range(12)]
    work = code("from lfhelpers.notebook import check, say, solution\n\nrecord('speed', 2.0 * steps, 'samples/s');")
    said = code('say("It runs at {speed}, at 100 % load.")')
    end = [text("## Tried, and did not help\n\nGuessing."), text("## What we learned\n\nTo look.")]
    return lesson(*texts, work, said, STUB, SOLUTION, CHECK, STUB, SOLUTION, CHECK, *end)


def test_a_good_lesson_has_no_findings(tmp_path, capsys):
    assert lint.check([save(tmp_path, "00_good", good_lesson())]) == 0
    assert capsys.readouterr().out == ""


def test_a_bad_one_is_reported_by_file_and_cell(tmp_path, capsys):
    made = good_lesson()
    made.cells[3].source = "It is 3.2x faster."
    assert lint.check([save(tmp_path, "00_bad", made)]) == 1
    assert capsys.readouterr().out.startswith("00_bad.ipynb:4: typed number '3.2x'")


def test_warnings_are_printed_and_pass(tmp_path, capsys):
    made = good_lesson()
    made.cells[3:15] = [code(f"x{number} = {number}") for number in range(12)]
    assert lint.check([save(tmp_path, "00_terse", made)]) == 0
    assert capsys.readouterr().out == "00_terse.ipynb: warning: 18 code cells and only 3 of text\n"


def test_a_file_that_is_no_notebook_is_a_sentence(tmp_path):
    (tmp_path / "00_x.ipynb").write_text("{")
    with pytest.raises(LfError, match=r"00_x\.ipynb is no notebook"):
        lint.check([tmp_path / "00_x.ipynb"])


def test_ids_are_present_and_unique():
    made = notebook(text("a"), text("b"))
    assert messages(lint.valid_format, made) == []
    made.cells[1].id = made.cells[0].id
    assert f"the cell's id '{made.cells[0].id}' is taken" in messages(lint.valid_format, made)
    del made.cells[1]["id"]
    assert "the cell has no id" in messages(lint.valid_format, made)


@pytest.mark.parametrize("spoil", [
    lambda made: made.cells[1].outputs.append(nbformat.v4.new_output("stream", text="x")),
    lambda made: made.cells[1].update(execution_count=3),
    lambda made: made.cells[1].metadata.update(execution={"iopub.status": "now"}),
    lambda made: made.cells[1].metadata.update(jupyter={"outputs_hidden": False}),
    lambda made: made.metadata.update(widgets={}),
    lambda made: made.metadata.language_info.update(version="3.11.7"),
])
def test_what_changes_from_run_to_run_is_stripped(spoil):
    made = lesson()
    assert messages(lint.stripped, made) == []
    spoil(made)
    assert "strip the notebook" in messages(lint.stripped, made)[0]


def test_the_kernel_is_python3():
    made = lesson()
    assert messages(lint.kernel, made) == []
    made.metadata.kernelspec.name = "my-conda-env"
    assert messages(lint.kernel, made) == ["the kernel must be python3, not my-conda-env"]


@pytest.mark.parametrize(("first", "found"), [
    ("# Title\n\n**Question.** Why is it slow?", []), ("# Is it slow?", ["must ask the lesson's question"]),
    ("Why is it slow?", ["needs a title"]), ("# Title\n\nIt is slow.", ["must ask the lesson's question"]),
])
def test_the_first_cell_has_a_title_and_a_question(first, found):
    for message, part in zip(messages(lint.opening, notebook(text(first))), found, strict=True):
        assert part in message


@pytest.mark.parametrize(("old", "new", "found"), [
    ("about 12 minutes", "about 12 minutes", []),
    ("It takes", "It lasts", ["the first cell must say in a list: - **It takes** ..."]),
    ("- **It needs** two cores.", "", ["the first cell must say in a list: - **It needs** ..."]),
    ("about 12 minutes", "a while", ["say how long the lesson takes as: about 30 minutes"]),
    ("about 12 minutes", "about 90 minutes", ["said to take 90 minutes; its text, code and exercises take about 11"]),
    ("about 12 minutes", "about 5 minutes", ["is said to take 5 minutes"]),
])
def test_the_first_cell_says_what_one_learns_how_long_it_takes_and_what_it_needs(old, new, found):
    made = good_lesson()
    made.cells[0].source = made.cells[0].source.replace(old, new)
    for message, part in zip(messages(lint.promises, made), found, strict=True):
        assert part in message


@pytest.mark.parametrize(("cell", "found"), [
    (-1, ["the last section must be: ## What we learned"]), (-2, ["a lesson has a section on what did not help"]),
])
def test_a_lesson_says_what_did_not_help_and_ends_with_what_was_learned(cell, found):
    made = good_lesson()
    assert messages(lint.closing, made) == []
    made.cells[cell].source = "## More"
    assert [part in message for message, part in zip(messages(lint.closing, made), found, strict=True)] == [True]


def test_size_is_bounded():
    assert messages(lint.size, good_lesson()) == []
    texts = [text("x")] * 61
    assert messages(lint.size, notebook(*texts[:24])) == ["24 cells; a lesson has 25 to 60"]
    assert messages(lint.size, notebook(*texts)) == ["61 cells; a lesson has 25 to 60"]
    long = notebook(*texts[:29], code("\n".join(["x = 1"] * 41)), code("\n".join(["x = 1"] * 40)))
    assert messages(lint.size, long) == ["41 lines of code; move some into the module (40 at most)"]


def test_tags_that_hide_a_failure_are_refused():
    assert messages(lint.tags, notebook(code("1", "exercise"))) == []
    assert "tag raises-exception" in messages(lint.tags, notebook(code("1 / 0", "raises-exception")))[0]
    assert "tag skip-execution" in messages(lint.tags, notebook(code("1", "skip-execution")))[0]


@pytest.mark.parametrize(("line", "found"), [
    ("rate: float = 0.5  # learning rate", []),
    ("micro: int = None  # samples a pass; none: chosen here", []),
    ("rate: float = 0.5", ["must stand on one line with a comment"]),
    ("rate = 0.5  # learning rate", ["only lines such as"]),
    ("rate: float = 0.5  # a comment with x = 1", ["papermill does not see parameter 'rate'"]),
    ("micro: int | None = None  # samples", ["papermill does not see parameter 'micro'"]),
    ("rate: int = 0.5  # learning rate", ["is annotated int, but its default is 0.5"]),
    ("rate: float = 1 / 2  # learning rate", ["must be a literal"]),
    ("import os  # not a parameter", ["only lines such as"]),
    ("rate: float  # without a value", ["only lines such as"]),
])
def test_parameters_are_annotated_literals_that_papermill_sees(line, found):
    reported = messages(lint.parameters_cell, notebook(text("# x"), code(f"{PARAMETERS}\n{line}", "parameters")))
    for message, part in zip(reported, found, strict=True):
        assert part in message


def test_the_parameters_cell_is_the_first_code_cell_and_has_a_profile():
    first = "the first code cell must be tagged parameters"
    assert messages(lint.parameters_cell, notebook(code("x = 1"), code(PARAMETERS, "parameters"))) == [first]
    assert messages(lint.parameters_cell, notebook(text("no code"))) == [first]
    lone = notebook(code("steps: int = 5  # steps", "parameters"))
    assert messages(lint.parameters_cell, lone) == ['declare profile: str = "auto"  # auto, smoke or gpu']


@pytest.mark.parametrize(("cells", "found"), [
    ([STUB, SOLUTION, CHECK], []), ([STUB, text("Think."), SOLUTION, CHECK], []),
    ([STUB, CHECK], ["must be followed by its solution cell"]), ([STUB, SOLUTION], ["followed by its solution cell"]),
    ([STUB, code("answer = solution(answer, 3)", "solution"), CHECK], ["must be folded"]),
    ([STUB, SOLUTION, code("print(answer)")], ["followed by a cell that calls check"]),
    ([code("answer = 3", "exercise"), SOLUTION, CHECK], ["only sets its answer"]),
])
def test_an_exercise_is_a_stub_a_folded_solution_and_a_check(cells, found):
    for message, part in zip(messages(lint.exercises, notebook(STUB, SOLUTION, CHECK, *cells)), found, strict=True):
        assert part in message


def test_a_lesson_has_two_or_three_exercises():
    assert messages(lint.exercises, notebook(STUB, SOLUTION, CHECK)) == ["1 exercises; a lesson has 2 or 3"]
    assert messages(lint.exercises, notebook(*[STUB, SOLUTION, CHECK] * 4)) == ["4 exercises; a lesson has 2 or 3"]


@pytest.mark.parametrize(("source", "found"), [
    ("![falling loss](x.png)", 0), ('<img src="x.png" alt="falling loss">', 0),
    ("![](x.png)", 1), ('<img src="x.png">', 1),
])
def test_images_have_alt_text(source, found):
    assert len(messages(lint.images, notebook(text(source)))) == found


@pytest.mark.parametrize(("cell", "found"), [
    (text("The parts sum to 100 %, with a 95 % interval."), []),
    (text("The published figure is 1.7x."), []),
    (text("`--delay 30 ms` and\n```\nsleep 30 ms\n```"), []),
    (text("Three ranks of 16 samples, on 2 x 16 cores, at 640x480; DDP x 2."), []),
    (text("It takes 12 ms a step."), ["12 ms"]), (text("Waits fill 61.5% of it."), ["61.5%"]),
    (text("At 1,200 samples/s it is 2x, or 3 times as fast."), ["1,200 samples/s", "2x", "3 times as"]),
    (code('say("It takes {step:.1f} ms, {share} of it waiting.")'), []),
    (code('say("It takes {step} of which 12 ms wait.")'), ["12 ms"]), (code('print("12 ms")'), []),
])
def test_measured_numbers_are_rendered_never_typed(cell, found):
    for message, number in zip(messages(lint.typed_numbers, notebook(cell)), found, strict=True):
        assert message.startswith(f"typed number '{number}'")


def test_notebooks_are_chosen_by_number_name_and_path(tmp_path):
    first, second = (save(tmp_path, name, lesson()) for name in ("00_start", "01_diagnosis"))
    (tmp_path / "draft.ipynb").write_bytes(first.read_bytes())
    assert catalogue.select(None, tmp_path) == [first, second]
    assert catalogue.select(["01", "00_start", str(second)], tmp_path) == [second, first]
    with pytest.raises(LfError, match=r"no notebook '01_diagnose' in .*; did you mean '01_diagnosis'\?"):
        catalogue.select(["01_diagnose"], tmp_path)
    with pytest.raises(LfError, match="no notebooks in"):
        catalogue.select(None, tmp_path / "empty")


def test_the_overview_lets_lessons_speak_for_themselves_and_names_those_to_come(tmp_path, runs_root, monkeypatch):
    monkeypatch.setattr(catalogue, "PLANNED", {"01_diagnosis": "An old question?", "02_data": "How is data fed?"})
    save(tmp_path, "01_diagnosis", good_lesson())
    assert catalogue.overview(tmp_path) == [
        {"notebook": "01_diagnosis", "question": "Where does the time go?", "takes": "about 12 minutes",
         "needs": "two cores", "exercises solved": "0 of 2"},
        {"notebook": "02_data", "question": "How is data fed?", "takes": "to come"}]
