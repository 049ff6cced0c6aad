"""A record keeps every figure with what it holds for, is found by machine, and tells when a comparison means little."""

import io
import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import record as records
from lfhelpers.measure.record import Record, Row


def example(**changes):
    rows = [Row.of("threads x2", [990, 1010, 1000], "images/s"), Row.of("threads x2", [2.0], "CPU ms/image"),
            Row.of("dali x2", [], "images/s")]
    settings = {"batch": 64, "failed": {"dali x2": "it needs a GPU."}}
    return replace(Record("data", settings, rows, {"threads_over_naive": 2.5}, 0.03), **changes)


def printed(record, recorded=None):
    console = Console(file=io.StringIO(), width=200)
    console.print(records.table(record, recorded))
    return re.sub(r" +\n(?=[a-z])", " ", console.file.getvalue())  # the caption's lines as one


def test_a_record_says_what_it_was_measured_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_COMMIT", "c0ffee")
    path = records.write(example(), tmp_path / "new" / "record.json")
    content = json.loads(path.read_text())
    assert tuple(content) == records.KEYS
    assert content["commit"]["hash"] == "c0ffee" and content["hardware"]["cores_usable"] >= 1
    assert set(content["rows"][0]) == {"name", "value", "low", "high", "unit", "n"}
    assert content["rows"][2]["value"] is None and content["rows"][2]["n"] == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]


def test_what_is_loaded_is_what_was_written(tmp_path):
    record = example()
    loaded = records.load(records.write(record, tmp_path / "record.json"))
    assert repr(loaded) == repr(record)  # by their text: NaN equals nothing
    assert math.isnan(loaded.row("dali x2").value)
    assert loaded.row("threads x2", "CPU ms/image").value == 2.0
    unknown = records.load(records.write(example(aa_spread=math.nan, commit=None), tmp_path / "unknown.json"))
    assert math.isnan(unknown.aa_spread) and unknown.commit is None


def test_records_of_one_second_do_not_replace_each_other(runs_root):
    paths = [records.save(example(date="2026-01-02T03:04:05+00:00")) for _ in range(3)]
    assert [path.name for path in paths] == [f"data-20260102030405{end}.json" for end in ("", "-2", "-3")]
    assert all(path.parent == runs_root / "bench" for path in paths)


@pytest.mark.parametrize("content", ["{", "[]", '{"bench": "data"}', '{"bench": "data", "more": 1}'])
def test_what_is_no_record_is_one_sentence(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(LfError, match=r"other\.json"):
        records.load(path)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LfError, match=r"can't be written: .*--out"):
        records.write(example(), tmp_path / "file" / "record.json")


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40))
def test_the_interval_holds_the_median_and_is_made_of_measurements(values):
    row = Row.of("x", values, "ms")
    assert row.low <= row.value <= row.high and row.n == len(values)
    assert {row.low, row.high} <= set(values)
    if len(values) < 6:
        assert (row.low, row.high) == (min(values), max(values))


def test_the_interval_covers_the_median_as_often_as_it_says():
    """2,000 samples of 15 from a skewed distribution: 96.5 % by the binomial distribution, 0.4 % standard error."""
    import numpy as np

    draws = np.random.default_rng(0).exponential(size=(2000, 15))
    hits = [row.low <= math.log(2) <= row.high for row in (Row.of("x", list(values), "s") for values in draws)]
    assert sum(hits) / len(hits) == pytest.approx(0.965, abs=0.015)


def test_a_comparison_gives_ratios_and_says_whether_the_machine_is_the_same():
    old = example(rows=[Row.of("threads x2", [500], "images/s"), Row.of("other", [1], "ms")])
    found = records.compare(example(), old)
    assert [(each.name, each.unit, each.ratio, each.same_hardware) for each in found] == [
        ("threads x2", "images/s", 2.0, True), ("threads_over_naive", "check", 1.0, True)]
    elsewhere = replace(old, hardware=old.hardware | {"cores_usable": 99})
    assert not any(each.same_hardware for each in records.compare(example(), elsewhere))
    assert records.differences(example(), elsewhere) == [
        f"cores_usable: {example().hardware['cores_usable']} here, 99 there"]
    newer = replace(old, hardware=old.hardware | {"driver": "999"})
    assert records.differences(example(), newer) == []


def test_the_table_shows_figures_failures_and_the_recorded_ratio():
    old = example(rows=[Row.of("threads x2", [500], "images/s")])
    text = printed(example(), replace(old, hardware=old.hardware | {"cores_usable": 99}))
    line = next(line for line in text.splitlines() if "images/s" in line)
    assert all(part in line for part in ("threads x2", "1,000", "990 - 1,010", "500", "2.00"))
    assert "failed" in text and "it needs a GPU." in text
    assert "on other hardware" in text and "A/A spread 3.0%" in text
    assert "No record of this machine" in printed(example())


@pytest.mark.parametrize(("gpus", "used", "name"), [
    ([], None, "cpu2"), (["NVIDIA H200"], None, "h200x1"), (["NVIDIA H200"] * 8, 2, "h200x2"),
    (["NVIDIA A100-SXM4-80GB"], 4, "a100-sxm4-80gbx1")])
def test_machines_have_short_names(gpus, used, name):
    facts = {"cores_usable": 2, "gpus": [{"name": gpu} for gpu in gpus]}
    assert records.machine(facts, used) == name


def test_the_reference_lies_beside_the_recorded_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "project", lambda: tmp_path)
    assert records.reference("data", "cpu2") is None
    path = records.write(example(), tmp_path / "runs" / "reference" / "cpu2" / "bench_data.json")
    assert records.reference_path("data", "cpu2") == path
    assert records.reference("data", "cpu2").checks == {"threads_over_naive": 2.5}


def test_parts_of_a_bench_are_put_together():
    first = example(rows=[Row.of("a", [1], "ms"), Row.of("b", [2], "ms")], aa_spread=0.01)
    first.settings["curves"] = {"made": [1.0], "tuned": [2.0]}
    second = example(rows=[Row.of("b", [3], "ms")], checks={"new": 1.0},
                     settings={"sweep": 1, "curves": {"tuned": [3.0]}})
    whole = records.merge(first, second)
    assert [(row.name, row.value) for row in whole.rows] == [("a", 1), ("b", 3)]
    assert whole.checks == {"threads_over_naive": 2.5, "new": 1.0} and whole.aa_spread == 0.03
    curves = {"made": [1.0], "tuned": [3.0]}
    assert whole.settings == first.settings | {"sweep": 1, "curves": curves}, "failures too, and at every depth"


@pytest.mark.parametrize(("change", "word"), [
    ({"bench": "step"}, "step"), ({"hardware": {"cpu": "other"}}, "cpu"), ({"commit": {"hash": "abc"}}, "abc")])
def test_parts_of_unlike_runs_are_refused(change, word):
    with pytest.raises(LfError, match=word):
        records.merge(example(**change), example())
