"""README.md shows what the recorded runs hold, and nothing else."""

import re

import pytest

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.notebook import readme


def test_the_readme_is_rendered_from_the_records():
    text = (runs.project() / "README.md").read_text()
    assert readme.with_block(text, readme.block()) == text, "run `lfhelpers readme`"
    assert (runs.project() / readme.PICTURE).read_text() == readme.picture(), "run `lfhelpers readme`"


def test_outside_the_rendered_block_no_result_is_typed():
    before, _, rest = (runs.project() / "README.md").read_text().partition(readme.BEGIN)
    prose = before + rest.partition(readme.END)[2]
    assert re.findall(r"\d[\d.,]* ?(?:ms|%|samples/s|GiB|x faster|times as fast)", prose) == []


def test_the_table_holds_the_ratio_of_the_recorded_speeds():
    rates = {name: runs.recorded(f"h200x1/{name}").summary["samples_per_s"] for name in ("as_found", "competent")}
    row = next(line for line in readme.block().splitlines() if line.startswith("| `competent`"))
    assert f"| {rates['competent'] / rates['as_found']:.2f} | 1.00 |" in row


def test_a_readme_without_marks_is_refused():
    with pytest.raises(LfError, match="needs the marks"):
        readme.with_block("# title", "block")
