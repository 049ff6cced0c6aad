"""The bench of traces and the pair of recorded traces, at a size that takes no time; the figures are a machine's."""

import pytest

from lfhelpers.bench import diagnosis_scale, timeline
from lfhelpers.bench.step import Case
from lfhelpers.cli.bench_ranks import bench_app
from lfhelpers.diagnose.trace import compare_traces, diagnose_trace
from lfhelpers.errors import LfError

TINY = Case("tiny", 2, ("as found", "+ fused AdamW"))


def test_what_is_made_is_a_trace_of_so_many_events(tmp_path):
    diagnosis_scale.write(tmp_path / "t.json", 12_000)
    report = diagnose_trace(tmp_path / "t.json").main
    assert report.trace.events == 12_020 and report.found.steps.found == diagnosis_scale.STEPS
    assert report.found.launched.known.all() and report.trace.gpu == "NVIDIA H200"
    assert (tmp_path / "t.json").stat().st_size / 12_020 == pytest.approx(200, abs=30), "bytes an event, as torch's"


def test_a_size_becomes_rows_of_seconds_and_megabytes():
    kept = []
    record = diagnosis_scale.run([3000], repeats=2, keep=lambda record: kept.append(len(record.rows)))
    assert (record.bench, record.checks, kept) == ("trace", {}, [7])
    assert [(row.unit, row.n) for row in record.rows] == [("MB", 1), *[("s", 2)] * 5, ("MB", 2)]
    assert record.row("3,000 events, memory at most").value > record.row("3,000 events, file").value > 0.4
    assert record.row("3,000 events, diagnosed").value >= record.row("3,000 events, read").value > 0


def test_a_diagnosis_that_fails_is_one_sentence(tmp_path):
    (tmp_path / "t.json").write_text("no trace")
    with pytest.raises(LfError, match=r"the diagnosis of t.json failed \(.*is not JSON"):
        diagnosis_scale._apart(tmp_path / "t.json")


def test_the_pair_of_a_machine_is_recorded_and_small(tmp_path):
    """At the size of a test, on the CPU, and up to a rung that compiles nothing."""
    a, b = timeline.traces(TINY, tmp_path)
    assert [path.name for path in (a, b)] == ["trace_as_found.json.gz", "trace_full.json.gz"]
    assert all(1000 < path.stat().st_size <= timeline.MOST for path in (a, b)) and 2 * timeline.MOST <= 2_000_000
    both = compare_traces(a, b)
    assert both.a.main.found.steps.found == both.b.main.found.steps.found == timeline.TRACED
    assert "times as fast as a" in both.verdict or "as fast as a" in both.verdict


def test_a_pair_that_is_too_large_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(LfError, match=r"MB when thinned, above 0\.00: record fewer steps"):
        timeline.traces(TINY, tmp_path, most=1000)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_are_there():
    assert {"timeline", "trace", "diagnosis"} <= {command.name for command in bench_app.registered_commands}
