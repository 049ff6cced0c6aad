"""The ladder's gates over made-up runs: what is refused, what crashed, and what can't stand without those."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lfhelpers.bench import ladder_record
from lfhelpers.quality import levers as gates
from tests.bench.made_up import climbed


def test_a_lever_that_changes_the_losses_is_refused_and_the_ladder_goes_on_without_it(
        made: Callable[..., list[str]]) -> None:
    made(losses=lambda job, step: 1 / step + 1e-7 * (not job.log.loss_item))
    record = ladder_record.record(climbed())
    said = record.settings["failed"]["+ no read in the step"]
    assert said.startswith("refused, since its gate (exact) is not passed: 6 of 6 losses differ, first that of step 1")
    assert record.checks["gates_passed"] == record.checks["gates_total"] - 1 == 9
    assert record.checks["full_over_as_found"] == pytest.approx(3 * 1.5 * 2)  # without the 1.2 of the refused one


def test_a_lever_that_can_not_stand_without_a_refused_one_is_left_out_and_the_others_are_judged(
        made: Callable[..., list[str]]) -> None:
    """bf16 weights need the fused update."""
    made(failing="fused-AdamW")
    record = ladder_record.record(climbed())
    assert record.settings["failed"]["+ bf16 weights"].startswith("it needs a lever that is not on the ladder: recipe")
    assert record.settings["gates"]["compiled blocks"]["passed"]
    assert (record.checks["gates_passed"], record.checks["gates_total"]) == (8, 9)


def test_exact_levers_that_follow_each_other_share_a_job(made: Callable[..., list[str]]) -> None:
    """The job with the first one is the job without the second."""
    made()
    ladder = climbed()
    exact = [rung for rung in ladder.rungs if rung.kind == "add" and rung.verdict and rung.lever
             and rung.lever.equivalence == "exact"]
    asked = [name for name in ladder.jobs.done if name.startswith("exact ")]
    assert len(exact) == 4 and len(asked) == 2 * 4 - 1


def test_a_reordered_lever_is_refused_for_its_gradients(made: Callable[..., list[str]],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    monkeypatch.setattr(gates, "gradient_errors", lambda recipes, timeout=0: {
        name: 0.02 if name == "compiled blocks" else 0.01 for name in recipes})
    said = ladder_record.record(climbed()).settings["failed"]["+ compiled blocks"]
    assert "gradients 2.00 times as far from float64 as eager's (limit 1.5)" in said


def test_a_rung_that_fails_is_a_sentence_and_the_ladder_goes_on(made: Callable[..., list[str]]) -> None:
    made(failing="compiled")
    record = ladder_record.record(climbed())
    assert record.settings["failed"]["+ compiled blocks"] == "compiled-blocks: no memory."
    assert record.checks["full_over_competent"] == pytest.approx(1)
    assert record.settings["gates"]["compiled blocks"] == {
        "gate": "reordered", "passed": False, "found": "its job failed: compiled-blocks: no memory."}
    assert (record.checks["gates_passed"], record.checks["gates_total"]) == (9, 10), "what crashed has not passed"
