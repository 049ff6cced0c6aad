"""A bench that is cut short leaves what it has, and what another part of it had found before."""

from dataclasses import replace

import pytest

from lfhelpers.cli.recording import keeping
from lfhelpers.errors import LfError
from lfhelpers.measure import record as records
from lfhelpers.measure.record import Record, Row


def found(name, value=1.0):
    return Record("step", {}, [Row.of(name, [value], "ms")], {name: value}, 0.0)


def test_what_was_found_before_stays_in_the_file_that_is_added_to(tmp_path):
    file = records.write(found("first"), tmp_path / "both.json")
    keep = keeping(file, file)
    keep(found("second", 2.0))
    keep(found("second", 3.0))  # the part goes on, and is cut short after this
    left = records.load(file)
    assert left.checks == {"first": 1.0, "second": 3.0} and [row.name for row in left.rows] == ["first", "second"]


def test_a_record_that_cant_be_added_to_is_refused_before_anything_is_measured(tmp_path):
    elsewhere = replace(found("first"), hardware=found("first").hardware | {"cores_usable": 99})
    with pytest.raises(LfError, match=r"cores_usable: .* here, 99 there"):
        keeping(tmp_path / "new.json", records.write(elsewhere, tmp_path / "old.json"))


def test_without_a_file_nothing_is_kept_on_the_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keeping(None)(found("first"))
    assert list(tmp_path.iterdir()) == []
