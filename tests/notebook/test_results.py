"""Results are promised, kept on disk at once, and are where the text's numbers come from."""

import json

import numpy as np
import pytest
import torch

from lfhelpers.errors import LfError
from lfhelpers.notebook import results
from lfhelpers.notebook.results import Result, Skipped, expect, record, render, say, skip


@pytest.fixture(autouse=True)
def book(tmp_path, monkeypatch):
    book = results.Book(tmp_path / "results.json")
    monkeypatch.setattr(results, "BOOK", book)
    return book


def on_disk(book):
    return json.loads(book.path.read_text())


def test_every_record_is_on_disk_before_the_next_line_runs(book):
    expect("speed", "memory")
    assert record("speed", 12.345, "samples/s", note="2 ranks") == 12.345
    assert on_disk(book)["results"] == [{"name": "speed", "value": 12.345, "unit": "samples/s", "note": "2 ranks"}]
    assert results.missing(on_disk(book)) == ["memory"]
    skip("memory", "no GPU here")
    assert results.missing(on_disk(book)) == []


def test_a_second_record_of_a_name_replaces_the_first_also_a_skip(book):
    record("speed", 1.0)
    skip("speed", "the link is down")
    record("speed", 2.0)
    assert [entry["value"] for entry in on_disk(book)["results"]] == [2.0]
    assert on_disk(book)["skipped"] == []


@pytest.mark.parametrize(("value", "plain"), [
    (np.float32(0.5), 0.5), (np.int64(3), 3), (np.ones(1), 1.0), (torch.tensor(2.5), 2.5), (True, True), ("a", "a"),
])
def test_scalars_of_numpy_and_torch_become_plain_ones(value, plain):
    kept = record("value", value)
    assert kept == plain and type(kept) is type(plain)


@pytest.mark.parametrize(("name", "value", "sentence"), [
    ("speed", float("nan"), "result 'speed' is nan"),
    ("speed", [1, 2], "result 'speed' is a list"),
    ("speed", torch.ones(2), "result 'speed' is a Tensor"),
    ("Speed (samples/s)", 1.0, "must be small letters"),
])
def test_what_is_no_finding_is_refused(name, value, sentence, book):
    with pytest.raises(LfError, match="result") as caught:
        record(name, value)
    assert sentence in str(caught.value)
    assert not book.path.exists()


def test_text_takes_its_numbers_from_results_and_admits_what_was_not_measured(capsys):
    record("speed", 1234.5, "samples/s")
    skip("memory", "no GPU here")
    capsys.readouterr()
    say("Speed {speed}, exactly {speed:.2f}; memory {memory}; after {steps} steps.", steps=50)
    assert capsys.readouterr().out == (
        "Speed 1,234 samples/s, exactly 1234.50; memory (not measured here: no GPU here); after 50 steps.\n")


def test_an_unknown_name_in_text_is_an_error_with_the_nearest_one():
    with pytest.raises(LfError, match=r"uses '{sped}', which is no result; did you mean 'speed'\?"):
        render("{sped}", {"speed": Result("speed", 1.0)})
    with pytest.raises(LfError, match="nothing is recorded yet"):
        render("{speed}", {})


def test_a_skipped_result_ignores_the_format_asked_for():
    assert render("{x:.3f}", {"x": Skipped("x", "one rank")}) == "(not measured here: one rank)"
