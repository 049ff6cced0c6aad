"""The parameters cell is the schema: names, types and defaults come from it, and nothing else is let through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.notebook import parameters
from lfhelpers.notebook.parameters import Parameter, value_of
from tests.notebook.lessons import code, lesson, notebook, save

CELL = """profile: str = "auto"  # auto, smoke or gpu
steps: int = 50  # optimizer steps
rate: float = 0.5  # learning rate
fused: bool = True  # one kernel
micro: int = None  # samples a pass; none: chosen by the notebook"""


def one(source, tag="parameters"):
    return notebook(code(source, tag))


def test_names_types_defaults_and_help_come_from_the_cell():
    found = parameters.declared(one(CELL), "notebook x")
    assert found["steps"] == Parameter("steps", "int", 50, "optimizer steps")
    assert [(entry.type, entry.default) for entry in found.values()] == [
        ("str", "auto"), ("int", 50), ("float", 0.5), ("bool", True), ("int", None)]


@pytest.mark.parametrize(("name", "raw", "value"), [
    ("steps", "64", 64), ("steps", 64, 64), ("rate", "1e-3", 1e-3), ("rate", 2, 2.0), ("fused", "false", False),
    ("fused", "True", True), ("micro", "none", None), ("micro", None, None), ("micro", "8", 8),
    ("profile", "007", "007"), ("profile", "none", "none"),
])
def test_text_is_read_as_the_annotated_type(name, raw, value):
    parsed = value_of(parameters.declared(one(CELL), "x")[name], raw, "notebook x")
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(("name", "raw", "sentence"), [
    ("steps", "many", "notebook x: parameter 'steps' takes int, not 'many'; for example steps=50."),
    ("steps", "1.5", "takes int, not '1.5'"), ("steps", "none", "takes int, not 'none'"),
    ("steps", True, "takes int, not True"), ("steps", None, "takes int, not None"),
    ("fused", "perhaps", "takes bool, not 'perhaps'; for example fused=true."),
    ("rate", "fast", "takes float, not 'fast'"), ("profile", 3, "takes str, not 3"),
])
def test_a_value_of_the_wrong_type_is_a_sentence(name, raw, sentence):
    with pytest.raises(LfError) as caught:
        value_of(parameters.declared(one(CELL), "x")[name], raw, "notebook x")
    assert sentence in str(caught.value)


@given(st.integers(), st.floats(allow_nan=False))
def test_what_python_prints_is_read_back(integer, real):
    assert value_of(Parameter("n", "int", 0, ""), str(integer), "x") == integer
    assert value_of(Parameter("r", "float", 0.0, ""), repr(real), "x") == real


@pytest.mark.parametrize(("made", "sentence"), [
    (one(CELL, "other"), "exactly one cell must be tagged 'parameters'"),
    (notebook(code(CELL, "parameters"), code(CELL, "parameters")), "exactly one cell must be tagged 'parameters'"),
    (one("steps = 50  # steps"), "parameter 'steps' must be annotated as str, int, float, bool, not None"),
    (one("steps: list[int] = [1]  # steps"), "must be annotated as str, int, float, bool, not list[int]"),
    (one("steps: int = len('abc')  # steps"), "the default of parameter 'steps' must be a literal"),
])
def test_a_cell_that_is_no_schema_is_refused(made, sentence):
    with pytest.raises(LfError) as caught:
        parameters.declared(made, "notebook x")
    assert sentence in str(caught.value)


def test_each_notebook_gets_the_parameters_that_it_declares(tmp_path):
    plain = save(tmp_path, "00_plain", lesson())
    rich = save(tmp_path, "01_rich", one(CELL))
    given = {"steps": "7", "fused": "0"}
    assert parameters.assign([plain, rich], given) == {plain: {"steps": 7}, rich: {"steps": 7, "fused": False}}
    with pytest.raises(LfError, match=r"notebook 00_plain, 01_rich has no parameter 'fusd'; did you mean 'fused'\?"):
        parameters.assign([plain, rich], {"fusd": "1"})


def test_pairs_of_the_command_line():
    assert parameters.split(["steps=5", "note=a=b"]) == {"steps": "5", "note": "a=b"}
    with pytest.raises(LfError, match="'steps' is no parameter: write name=value"):
        parameters.split(["steps"])
