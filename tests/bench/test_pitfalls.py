"""The bench of the pitfalls: figures for both halves, no alarm in a clean run, each planted fault found."""

import pytest

from lfhelpers.bench import pitfalls as bench
from lfhelpers.bench import pitfalls_planted as planted
from lfhelpers.bench.pitfalls_cost import SIZES, Loop
from lfhelpers.measure.statistics import Comparison, effect
from lfhelpers.pitfalls import NAMES
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train.hooks import Hook


@pytest.mark.alone
def test_a_record_holds_both_figures_what_detectors_cost_said_and_found(monkeypatch):
    monkeypatch.setattr(bench, "cost", lambda: Comparison((1.0,) * 4, (1.01,) * 4, effect([1.0] * 4, [1.01] * 4)))
    kept = []
    record = bench.run(("dropped_tail", "clip_nan"), runs=1, keep=kept.append)
    assert record.row("dropped_tail, broken").value == pytest.approx(20)
    assert record.row("clip_nan, cured").value == 0
    assert "2 micro-batches" in record.settings["said"]["dropped_tail"]
    found = {f"{fault}_found": 1 for fault in planted.FAULTS}
    assert len(found) == 8 and record.checks == {
        "pitfalls_total": 2, "pitfalls_with_both_numbers": 2, "detector_cost_share": pytest.approx(0.01),
        "false_alarms_in_1_clean": 0, **found}
    assert record.settings["alarms"] == [] and len(kept) == 2 + len(found)
    assert (record.row("planted late_ranks, found").value, record.row("planted late_ranks, found").n) == (1, 1)
    assert record.row("a step with detectors").value > record.row("a step without detectors").value


def test_clean_recipes_have_the_probe_compiled_models_and_two_ranks():
    assert {ranks for ranks, _ in planted.CLEAN} == {1, 2} and len(planted.CLEAN) <= 20
    for wanted in ("log.probe=true", "compile.scope=model", "data.workers=2"):
        assert any(wanted in overrides for _, overrides in planted.CLEAN)


@pytest.mark.alone
def test_steps_with_all_detectors_and_without_take_turns(tmp_path):
    loop = Loop(recipe("competent", *SIZES["cpu"], "log.skip=0", "device=cpu"), Run(tmp_path))
    seen = []
    loop._detectors.append(Counting(seen))
    loop.block(2, watched=True)
    before = loop.seconds
    loop.block(1, watched=False)
    loop.block(1, watched=True)
    loop.trainer.close()
    assert seen == [1, 2, 4], "the third step was made without them"
    assert {type(hook).__name__ for hook in loop._detectors} >= {
        "Guard", "Agreement", "Sentinel", "OrderHash", "Straggler"}
    assert 0 < before < loop.seconds and len(Run(tmp_path).steps("order-rank-0.jsonl")) == 3


class Counting(Hook):
    def __init__(self, seen):
        self.seen = seen

    def step(self, row):
        self.seen.append(row["step"])


def test_a_pitfall_that_cannot_be_measured_is_kept_as_failed(monkeypatch):
    def broken(name):
        raise RuntimeError("no such machine")
    monkeypatch.setattr(bench.pitfalls, "show", broken)
    record = bench._with_pitfall(bench.Record("pitfalls", {"said": {}, "failed": {}}, [], {}, 0.0), NAMES[0])
    assert record.checks == {"pitfalls_total": 1, "pitfalls_with_both_numbers": 0}
    assert "no such machine" in record.settings["failed"][NAMES[0]]
