"""The map knows every lesson and every cause that a report names; words mean the same wherever they are explained."""

import ast
import inspect
import re

import pytest

from lfhelpers import runs
from lfhelpers.diagnose import findings
from lfhelpers.notebook import catalogue, guide, readme

LESSONS = catalogue.select()
DESIGN = {"workload", "recipe", "lever", "run", "step report", "ceiling", "effect", "gate", "ladder"}


def test_every_lesson_is_on_the_map_and_nothing_else():
    known = {path.stem[:2] for path in LESSONS} | {name[:2] for name in catalogue.PLANNED}
    assert {lesson for _, lesson, _ in guide.MAP} == known


def test_every_cause_that_a_report_names_leads_to_a_lesson():
    tree = ast.parse(inspect.getsource(findings))
    causes = {node.args[0].value for node in ast.walk(tree)
              if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"}
    quoted = {word for symptom, _, _ in guide.MAP for word in re.findall(r"'([^']+)'", symptom)}
    assert quoted >= causes and len(causes) > 8


def test_the_words_are_those_of_the_design_and_mean_the_same_in_lessons():
    assert guide.WORDS.keys() >= DESIGN
    explained = [row for path in LESSONS for cell in catalogue.read(path).cells if "| word | meaning |" in cell.source
                 for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", cell.source, flags=re.MULTILINE)]
    differing = {word: meaning for word, meaning in explained
                 if word != "word" and guide.WORDS.get(word) != meaning}
    assert len(explained) >= 6 and differing == {}


def test_the_page_beside_the_notebooks_is_up_to_date_and_its_links_lead_somewhere():
    page = runs.project() / readme.GUIDE
    assert page.read_text() == readme.guide_page(), "run `lfhelpers readme`"
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        assert (page.parent / link).exists()


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_links_in_lessons_lead_somewhere(path):
    text = "\n".join(cell.source for cell in catalogue.read(path).cells if cell.cell_type == "markdown")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (path.parent / link).exists(), link
