"""The bench of the base: what cards and runs become in its record."""

from __future__ import annotations

import pytest

from lfhelpers.bench.base import Options, _with_base, _with_run, run, spread
from lfhelpers.errors import LfError
from lfhelpers.measure.record import Record

EMPTY = Record("base", {"curves": {}, "spread": {}}, [], {}, 0.0)
CARD = {"seconds": 300.0, "curve": [{"step": 5}],
        "figures": {"question_accuracy": 0.96, "bleu4": 0.9, "success": 0.75, "success_blind": 0.04, "loss_text": 0.1}}


def summary(after: float, seconds: float) -> dict:
    point = {"step": 10, "samples": 640, "seconds": seconds, "success": after, "action_mse": 0.01,
             "measuring": 4.0}
    return {"quality": {"before": {"success": 0.4, "action_mse": 0.03}, "curve": [point]}}


def test_a_base_becomes_the_checks_that_are_asked_for() -> None:
    record = _with_base(EMPTY, CARD)
    assert record.checks == {"minutes_to_base": 5.0, "question_accuracy": 0.96, "bleu4": 0.9, "success_base": 0.75,
                             "success_blind": 0.04}
    assert record.settings["curves"]["base"] == [[{"step": 5}]]


def test_seeds_are_gathered_into_medians_curves_and_a_spread() -> None:
    record = _with_base(EMPTY, CARD)
    for seed, (after, seconds) in enumerate([(0.8, 60.0), (0.9, 90.0), (0.85, 66.0)]):
        record = _with_run(record, summary(after, seconds), seed)
    assert {name: record.checks[name] for name in ("finetune_from", "finetune_to", "finetune_minutes")} == {
        "finetune_from": 0.4, "finetune_to": 0.85, "finetune_minutes": pytest.approx(1.1)}
    (row,) = [row for row in record.rows if row.name == "finetune success"]
    assert (row.low, row.value, row.high, row.n) == (0.8, 0.85, 0.9, 3)
    assert record.settings["spread"]["success"] == pytest.approx(0.05)
    assert record.row("finetune, a measurement", "s").value == 4.0
    assert [curve[0]["step"] for curve in record.settings["curves"]["finetune"]] == [0, 0, 0]
    assert record.checks["minutes_to_base"] == 5.0


def test_one_seed_has_no_spread_and_an_unknown_part_is_refused() -> None:
    assert spread([{"success": 0.5}]) == {}
    with pytest.raises(LfError, match="--part bake: take make or finetune"):
        run(Options("tiny", ("bake",)))
