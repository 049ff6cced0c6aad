"""The bench of the pitfalls: figures for both halves, no alarm in a clean run, each planted fault found."""

import pytest

from lfhelpers.bench import pitfalls as bench
from lfhelpers.pitfalls import NAMES


@pytest.mark.alone
def test_a_record_holds_both_figures_and_what_detectors_said_and_found(monkeypatch):
    monkeypatch.setattr(bench, "_cost", lambda: (0.004, {"memory": [10.0, 12.0]}))  # a step's time is not for a test
    kept = []
    record = bench.run(("dropped_tail", "clip_nan"), runs=1, keep=kept.append)
    assert record.row("dropped_tail, broken").value == pytest.approx(20)
    assert record.row("clip_nan, cured").value == 0
    assert "2 micro-batches" in record.settings["said"]["dropped_tail"]
    assert record.checks == {"pitfalls_total": 2, "pitfalls_with_both_numbers": 2, "detector_cost_share": 0.004,
                             "false_alarms_in_1_clean": 0, "leaks_found": 1, "damaged_samples_found": 1}
    assert record.settings["alarms"] == [] and [len(item.checks) for item in kept] == [2, 3]


def test_a_pitfall_that_cannot_be_measured_is_kept_as_failed(monkeypatch):
    def broken(name):
        raise RuntimeError("no such machine")
    monkeypatch.setattr(bench.pitfalls, "show", broken)
    record = bench._with_pitfall(bench.Record("pitfalls", {"said": {}, "failed": {}}, [], {}, 0.0), NAMES[0])
    assert record.checks == {"pitfalls_total": 1, "pitfalls_with_both_numbers": 0}
    assert "no such machine" in record.settings["failed"][NAMES[0]]
