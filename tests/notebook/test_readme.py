"""README.md shows what the recorded runs hold, and nothing else."""

import re

import pytest

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure.record import Record
from lfhelpers.notebook import readme


def test_the_readme_is_rendered_from_the_records():
    text = (runs.project() / "README.md").read_text()
    assert readme.rendered(text) == text, "run `lfhelpers readme`"
    assert (runs.project() / readme.PICTURE).read_text() == readme.picture(), "run `lfhelpers readme`"


def test_outside_the_rendered_block_no_result_is_typed():
    text = (runs.project() / "README.md").read_text()
    prose = re.sub(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]* ?(?:ms|%|samples/s|GiB|x faster|times as fast)", prose) == []


def test_the_table_holds_the_ratio_of_the_recorded_speeds():
    rates = {name: runs.recorded(f"h200x1/{name}").summary["samples_per_s"] for name in ("as_found", "competent")}
    row = next(line for line in readme.block().splitlines() if line.startswith("| `competent`"))
    assert f"| {rates['competent'] / rates['as_found']:.2f} | 1.00 |" in row


def test_the_picture_says_what_is_captured_in_its_words_and_in_its_legend():
    drawn = readme.chart()
    assert f"on {readme.CAPTURED}." in drawn.alt
    assert readme.CAPTURED in [label.get_text() for label in drawn.figure.legends[0].get_texts()]


def test_records_are_told_as_far_as_they_go(monkeypatch):
    step = Record("step", {}, [], {"cold_compile_s": 27.7, "warm_compile_s": 5.8, "full_mb16_ms": 59.5}, 0.0,
                  date="2026-12-01T10:00")
    monkeypatch.setattr(readme.records, "reference", lambda bench, where: step if bench == "step" else None)
    assert readme.records_block().splitlines()[2:] == [
        "| Compiling `full` | 28 s, from its cache 6 s | [2026-12-01](runs/reference/h200x1/bench_step.json) |"]


def test_what_the_examples_gain_is_told_from_their_record_alone(monkeypatch):
    made = Record("own_workloads", {"steps": 300, "rounds": 5}, [],
                  {"image_gain": 1.834, "language_gain": 2.5, "watch_cost_share": 0.004}, 0.02, date="2026-12-01T10:00",
                  hardware={"gpus": [{"name": "NVIDIA H200"}]})
    monkeypatch.setattr(readme.records, "reference", lambda bench, where: made)
    told = readme.own_block()
    assert "trains 1.83 times as many samples/s, the language model 2.50 times" in told
    assert "costs a plain loop 0.40 % of its step. Recorded 2026-12-01 on one NVIDIA H200" in told
    monkeypatch.setattr(readme.records, "reference", lambda bench, where: None)
    assert readme.own_block() == "No gain of the two examples is on record yet."


def test_a_readme_without_marks_is_refused():
    with pytest.raises(LfError, match="needs the marks"):
        readme.with_block("# title", "block")
