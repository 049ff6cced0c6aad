"""Ceilings on steps whose truth is known: ranges, combinations, what comes next; and predictions scored with sign."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.diagnose import predictions
from lfhelpers.diagnose.ablation import Ablation
from lfhelpers.diagnose.ceilings import REMEDIES, Ceilings
from lfhelpers.diagnose.timelines import Ablated, Serial, of_ablation
from lfhelpers.errors import LfError
from lfhelpers.measure.statistics import effect

CAUSES = tuple(REMEDIES)
shares = st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 30), min_size=1)


def ablated(load=20.0, main=100.0, overlap=1.0, realistic=None, **parts):
    base = main + load - overlap * min(main, load)
    return Ceilings(Ablated(base, load, main, overlap, parts, None, realistic or {}), "a test")


def ablation(full, cached=100.0, load=10.0, **variants):
    """An ablation of one rank whose three blocks agree; `variants` are milliseconds by name, with _ for a space."""
    ms = {"full": full, "cached batch": cached} | {name.replace("_", " "): value for name, value in variants.items()}
    of_ranks = {name: tuple((value,) * 3 for value in (values if isinstance(values, tuple) else (values,)))
                for name, values in ms.items()}
    return Ablation("test", "cpu", "a CPU", 4, 1, 12, of_ranks, load, 0.0, 0.0, 2.0, 0.0, 2, {})


def test_serial_causes_win_more_together_than_their_product():
    found = Ceilings(Serial(100.0, {"data": 40.0, "late rank": 40.0}), "a test")
    assert found.of("data").ideal == pytest.approx(100 / 60)
    assert found.combined(["data", "late rank"], "ideal") == pytest.approx(5.0)
    assert found.of("data").ideal * found.of("late rank").ideal < 2.8, "what multiplying would have said"


def test_causes_that_hide_each_other_win_less_than_their_product():
    """A loader beside the step: a faster step only waits for it, and a faster loader for the step."""
    found = ablated(load=150.0, main=100.0, optimizer=60.0, realistic={"optimizer": 0.0})
    assert found.of("optimizer").ideal == 1.0
    assert (found.of("data").ideal, found.of("data").then) == (1.5, "optimizer")
    assert found.combined(["data", "optimizer"], "ideal") == pytest.approx(150 / 40)


def test_the_way_through_the_levers_names_each_next_bottleneck():
    found = ablated(load=150.0, main=100.0, optimizer=30.0, communication=20.0,
                    realistic={"optimizer": 0.0, "communication": 0.0, "data": 0.0})
    assert [cause for cause, _ in found.path()] == ["data", "optimizer", "communication"]
    assert [speedup for _, speedup in found.path()] == pytest.approx([1.5, 150 / 70, 3.0])
    assert found.verdict == ("Data-bound: of each step of 150.0 ms, 33 % would go with a loader that is never waited "
                             "for; a loader that is never waited for could give 1.50x.")


def test_a_step_without_a_stall_is_bound_by_computation():
    assert ablated(load=20.0, optimizer=1.0).verdict.startswith("Compute-bound: no stall of the step of 100.0 ms")


def test_a_floor_is_the_realistic_end():
    """AdamW's bytes cross memory in any case, and decoding takes its CPU time."""
    found = ablated(load=150.0, main=100.0, optimizer=40.0, realistic={"data": 0.8, "optimizer": 0.25})
    assert (found.of("data").realistic, found.of("data").ideal) == pytest.approx((150 / 120, 1.5))
    assert found.combined(["data", "optimizer"]) == pytest.approx(150 / 120), "the loader is still the longer side"


@given(parts=shares, kept=st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 1)), load=st.floats(0, 300),
       overlap=st.floats(0, 1), more=st.lists(st.sampled_from(CAUSES), max_size=4))
def test_ranges_are_ranges_and_more_levers_never_win_less(parts, kept, load, overlap, more):
    found = ablated(load, 100.0, overlap, kept, **{cause: ms for cause, ms in parts.items() if cause != "data"})
    known = [cause for cause in more if cause in found.timeline.causes]
    for ceiling in found:
        assert 1 - 1e-9 <= ceiling.realistic <= ceiling.ideal + 1e-9
        for end, alone in (("realistic", ceiling.realistic), ("ideal", ceiling.ideal)):
            assert found.combined([*known, ceiling.cause], end) >= max(alone, found.combined(known, end)) - 1e-9
    assert [speedup for _, speedup in found.path()] == sorted(speedup for _, speedup in found.path())


@given(load=st.floats(0.1, 500), cached=st.floats(1, 500), full=st.floats(1, 1000))
def test_the_model_of_an_ablation_gives_the_step_that_was_measured(load, cached, full):
    found = of_ablation(ablation(full, cached=cached, load=load))
    assert found.ms({}) == pytest.approx(full)
    assert found.ms({"data": 0.0}) == pytest.approx(min(full, cached))


def test_what_an_ablation_measured_is_what_is_promised():
    found = Ceilings(of_ablation(ablation(160.0, load=10.0, no_optimizer=70.0)), "an ablation")
    assert found.of("data").ideal == pytest.approx(1.6)
    assert found.of("optimizer").ideal == pytest.approx(160 / 130)
    assert found.of("optimizer").realistic == pytest.approx(160 / 132), "a fused update takes 2 ms of the 30"


def test_of_several_ranks_exchange_and_lateness_are_told_apart():
    """Rank 1 computes 60 ms longer; the exchange itself shows 10 ms."""
    found = ablation((170.0, 170.0), cached=(170.0, 170.0), load=0.1, no_exchange=(100.0, 160.0))
    assert (found.waited_ms, found.late_rank) == (pytest.approx(60.0), 1)
    told = Ceilings(of_ablation(found), "an ablation")
    assert told.listed[0].cause == "late rank" and told.of("late rank").ideal == pytest.approx(170 / 110)
    assert told.of("communication").ideal == pytest.approx(170 / 160)


def test_three_sizes_of_batch_tell_the_hosts_floor():
    found = ablation(40.0, cached=40.0, batch_1=30.0, half_batch=30.0)
    assert found.pace.host == pytest.approx(30.0) and found.pace.knee == pytest.approx(2.0)
    assert "the host sets the pace" in found.head()


def test_an_unknown_cause_is_named():
    with pytest.raises(LfError, match="nothing is known of the cause 'date'; did you mean 'data'"):
        ablated().of("date")


def test_predictions_are_kept_and_scored_with_their_sign(tmp_path):
    path = tmp_path / "predictions.jsonl"
    assert predictions.calibration(path).startswith("no prediction has been scored yet")
    predictions.keep(ablated(load=150.0, optimizer=40.0, realistic={"optimizer": 0.5, "data": 0.9}), "run-1", path)
    good = predictions.score("measured loader", 1.2, path=path)
    assert (good.low, good.high, good.outside) == (pytest.approx(150 / 135), 1.5, 0.0)
    promised = predictions.score("data", effect([3.0, 3.1, 3.0], [2.5, 2.6, 2.5]), "ideal", path=path)
    assert promised.error == pytest.approx(1.5 / 1.2 - 1, abs=0.01) and promised.error > 0 == promised.outside
    surprise = predictions.score("data", 1.8, "ideal", path=path)
    assert surprise.error == surprise.outside == pytest.approx(1.5 / 1.8 - 1), "it won more than was promised"
    assert predictions.scores(path) == [good, promised, surprise]
    assert predictions.calibration(path).startswith("3 predictions scored: median error -7%")
    assert "2 inside their range, the worst +25% for data" in predictions.calibration(path)
    told = predictions.calibrated([predictions.scored("loops", 1.2, 1.2, 1.0)])
    assert told.startswith("1 prediction scored: median error +20%"), "scores that nobody keeps are told alike"


def test_what_was_never_promised_can_not_be_scored(tmp_path):
    predictions.keep(ablated(), "run-1", tmp_path / "p.jsonl")
    with pytest.raises(LfError, match="nothing was predicted for 'fused adamw'"):
        predictions.score("fused adamw", 1.1, path=tmp_path / "p.jsonl")
