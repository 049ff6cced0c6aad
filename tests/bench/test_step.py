"""The bench of the step: which rungs a case has, and a whole record of the smallest case on this machine."""

import pytest

from lfhelpers.bench.step import CASES, OUTSIDE, TINY, Case, cases, ladder, run
from lfhelpers.errors import LfError
from lfhelpers.levers.table import LEVERS
from lfhelpers.measure.kernels import grouped
from lfhelpers.recipe import diff, recipe


def test_the_whole_ladder_leads_from_as_found_to_full_but_for_data_and_ranks():
    rungs = ladder(Case("full", 16, None))
    assert [name for name, _ in rungs] == ["as found", *(f"+ {lever.name}" for lever in LEVERS
                                                         if lever.name not in OUTSIDE)]
    ours = ("workload.size", "batch.micro", "log.skip", "steps")
    left = {field for field in diff(rungs[-1][1], recipe("full")) if field not in ours}
    assert {field.partition(".")[0] for field in left} == {"data", "ddp"}


def test_the_short_ladder_begins_and_ends_like_the_whole_one():
    whole, short = ladder(Case("small", 32, None)), ladder(Case("small", 32))
    assert (short[0], short[-1]) == (whole[0], whole[-1]) and set(dict(short)) < set(dict(whole))


def test_cases_are_found_by_name_or_made():
    assert cases([]) is None
    assert cases(["full_mb16", "tiny_mb4"]) == (CASES[0], TINY[0])
    assert cases(["small_mb8"]) == (Case("small", 8),)
    with pytest.raises(LfError, match="--case small: write SIZE_mbMICRO, for example full_mb16"):
        cases(["small"])


def test_a_record_holds_a_row_a_rung_and_the_ratio_to_as_found():
    record = run((Case("tiny", 2, ("as found", "+ fused AdamW")),), blocks=3, compile_size=None)
    assert [(row.name, row.unit) for row in record.rows] == [
        ("tiny_mb2 as found", "ms"), ("tiny_mb2 + fused AdamW", "ms"), ("tiny_mb2 + fused AdamW", "x as found")]
    assert record.checks["tiny_mb2_ms"] == record.rows[1].value > 0
    assert record.checks["tiny_mb2_over_as_found"] == record.rows[2].value
    assert record.settings["failed"] == {} and record.aa_spread > 0


def test_a_case_that_fails_is_a_sentence_in_the_record_and_not_the_end():
    record = run((Case("huge", 2),), blocks=3, compile_size=None)
    assert record.rows == [] and "huge" in record.settings["failed"]["huge_mb2"]


def test_kernels_are_told_by_their_names():
    rows = grouped([("nvjet_sm90_tst_144x128_64x6_1x2_h_bz_coopA_bias_TNN", 40.0), ("_update", 9000.0),
                    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", 80.0),
                    ("triton_poi_fused_gelu_view_2", 60.0), ("Memset (Device)", 1.0), ("nvjet_sm90_tst_x", 20.0),
                    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 5.0), ("something new", 2.0)])
    assert [(row.name, row.kernels, row.ms) for row in rows] == [
        ("optimizer", 1, 9.0), ("attention", 1, 0.08), ("matrix products", 2, 0.06),
        ("compiled pointwise and reductions", 1, 0.06), ("communication", 1, 0.005), ("other", 1, 0.002),
        ("copies and casts", 1, 0.001)]
