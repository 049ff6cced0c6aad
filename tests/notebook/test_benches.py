"""A lesson runs a benchmark as anyone would in a terminal, and gets its record, or the reason why there is none."""

import pytest

from lfhelpers.errors import LfError
from lfhelpers.notebook.benches import bench
from tests.data.toy_shards import make


def test_a_lesson_gets_the_record_and_what_is_left_lies_where_it_says(tmp_path, capsys):
    made = make(tmp_path / "toy")
    found = bench("data", "--quick", "--no-engines", "--size-mb=1", "--seconds=0.05", f"--data={made.folder}",
                  root=tmp_path / "root")
    assert found.row("sweep_1_global", "MB/s").value > 0 and found.settings["sweep"]["sizes_mb"] == [1]
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["data"]
    assert capsys.readouterr().out.startswith("lfhelpers bench data --quick --no-engines")


def test_a_benchmark_that_fails_says_why():
    with pytest.raises(LfError, match="`lfhelpers bench data` failed with code 2: there is no engine 'threadz'"):
        bench("data", "--only=threadz")
    with pytest.raises(LfError, match="failed with code 2: No such command 'dta'"):
        bench("dta")
