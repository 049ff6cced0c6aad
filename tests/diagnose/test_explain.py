"""A lever's page: every lever has one, its torch lines are Python, and its ceiling is that of the newest evidence."""

import ast
import importlib.util

import pytest

from lfhelpers import runs
from lfhelpers.diagnose import explain
from lfhelpers.diagnose.ablation import CACHED, FULL, NO_UPDATE, Ablation
from lfhelpers.errors import LfError
from lfhelpers.levers.in_torch import LINES
from lfhelpers.levers.table import BESIDE, LEVERS, Machine
from lfhelpers.recipe import recipe

SERVER = Machine("cuda", ranks=1, own=True, frozen=False)


@pytest.mark.parametrize("lever", LEVERS + BESIDE, ids=lambda lever: lever.name)
def test_every_lever_has_a_page_whose_lines_are_python(lever, runs_root):
    page = explain.explained(lever.name, SERVER)
    ast.parse(LINES[lever.name].lines)
    assert "lfhelpers" not in LINES[lever.name].lines
    assert importlib.util.find_spec(f"lfhelpers.{LINES[lever.name].module}")
    assert page.startswith(f"{lever.name}: {lever.why}.") and all(field in page for field in lever.fields)
    assert f"gate: {lever.equivalence}: " in page and "ceiling: not known yet" in page


def test_there_is_a_page_for_nothing_else():
    assert set(LINES) == {lever.name for lever in LEVERS + BESIDE}


def test_a_page_tells_the_ceiling_of_the_newest_evidence_of_that_workload(runs_root):
    for use, update in (("vla", 5.0), ("a/b.py:Mine", 8.0)):
        run = runs.create(recipe("as_found", f"workload.use={use}"))
        found = Ablation("as_found", "cpu", "a CPU", 8, 1, 24, {
            FULL: ((10.0,) * 3,), CACHED: ((10.0,) * 3,), NO_UPDATE: ((10.0 - update,) * 3,)},
            0.1, 0.1, 1.0, 0.5, 0.0, 2, {})
        run.write("ablation.json", found.as_dict())
    assert "ceiling: 1.82x to 2.00x, by a fused optimizer" in explain.explained("fused AdamW", SERVER)
    assert "ceiling: 4.00x to 5.00x" in explain.explained("fused AdamW", SERVER, workload="a/b.py:Mine")
    assert "has no evidence for it; only pulling it tells" in explain.explained("only rows", SERVER)


def test_the_command_says_which_lever_was_meant(command, runs_root):
    assert command("explain", "graph")[1].startswith("CUDA graph: ")
    assert "'recomputed' names 2 levers: recomputed blocks, recomputed pointwise work" in command(
        "explain", "recomputed")[2]
    assert "did you mean 'PowerSGD'?" in command("explain", "powersdg")[2]
    out = command("explain", "all", "--workload", "lfhelpers/workloads/skeleton.py:MyWorkload")[1]
    assert len(out.splitlines()) == len(LEVERS + BESIDE) and "look for the same waste in yours" in out


def test_only_a_part_of_a_name_that_is_no_lever_is_refused():
    with pytest.raises(LfError, match="no lever is named 'wings'; known: "):
        explain.named("wings")
