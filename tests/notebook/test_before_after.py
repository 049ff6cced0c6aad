"""The before/after table where people read it: a terminal, a page; and the command that makes both."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lfhelpers.bench.ladder_record import FIGURES
from lfhelpers.cli import app
from lfhelpers.errors import LfError
from lfhelpers.measure import record as records
from lfhelpers.measure.record import Record, Row
from lfhelpers.notebook import before_after
from lfhelpers.notebook.html import external_loads


@pytest.fixture
def ladder(tmp_path: Path) -> Path:
    rows = [Row(name, rate, rate, rate, unit, 3) for name, rate in (("as found", 50.0), ("competent", 80.0),
                                                                    ("full", 125.0)) for unit in FIGURES]
    settings = {"size": "tiny", "micro": 8, "nproc": 1, "device": "cpu"}
    return records.write(Record("ladder_tiny", settings, rows, {}, 0.04), tmp_path / "ladder.json")


def test_the_command_prints_the_table_and_writes_a_page_that_loads_nothing(ladder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["results", "--ladder", str(ladder), "--machine", "nowhere", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "samples/s and GPU" in done.output and "not reproducible here because there is no GPU" in done.output
    assert "2.5 times the throughput is 60.0 % less time" in done.output
    html = page.read_text()
    assert html.count('<th scope="row"') >= 10 and "differs from itself by up to 4.0%" in html
    assert external_loads(html) == []


def test_what_is_missing_is_said(ladder: Path, tmp_path: Path) -> None:
    with pytest.raises(LfError, match="no ladder's record of nowhere; give one with --ladder"):
        before_after.gather([], machine="nowhere")
    with pytest.raises(LfError, match="three runs, as_found, competent, full; 1 are named"):
        before_after.gather(["one"])
    with pytest.raises(LfError, match="can't be written: No such file"):
        before_after.gather([], ladder, machine="nowhere").write(tmp_path / "none" / "page.html")
