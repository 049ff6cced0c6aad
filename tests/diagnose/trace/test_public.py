"""Traces of other people's jobs, measured once by an independent script: the reports must agree with it.

The files are not part of the project. They lie in ../shared/traces beside the checkout, or where $LFHELPERS_TRACES
says; without either folder these tests are skipped.
"""

import os
from pathlib import Path

import pytest

from lfhelpers.diagnose.trace import compare_traces, diagnose_trace

BESIDE = Path(__file__).parents[4] / "shared" / "traces"
FOLDER = Path(os.environ.get("LFHELPERS_TRACES") or BESIDE)
NAMES = ("compiled_triton", "cpu_only_gloo", "ddp_a100_rank0of2", "no_profiler_step", "rank_missing",
         "resnet50_workers0", "resnet50_workers4", "rocm_mi250")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"there are no public traces in {FOLDER}, and "
                                                            "LFHELPERS_TRACES names no other folder")


@pytest.fixture(scope="module")
def found():
    """Diagnoses by name, each read once."""
    kept = {}

    def of(name):
        if not (FOLDER / f"{name}.json.gz").exists():
            pytest.skip(f"{FOLDER} holds no {name}.json.gz")
        if name not in kept:
            kept[name] = diagnose_trace(FOLDER / f"{name}.json.gz").main
        return kept[name]
    return of


@pytest.mark.parametrize("name", NAMES)
def test_parts_sum_to_100_and_sums_keep_their_order(found, name):
    report = found(name)
    assert sum(report.percent.values()) == pytest.approx(100, abs=0.1)
    assert sum(report.found.parts.values()) == report.found.length
    whole = report.whole
    assert whole["exposed_communication_ms"] <= whole["communication_ms"] <= whole["busy_ms"] <= whole["span_ms"]
    assert report.gpu is False or (whole["busy_ms"] <= whole["sum_ms"] and 0 <= whole["busy_percent"] <= 100)


@pytest.mark.parametrize(("name", "figures"), [
    ("resnet50_workers0", {"span_ms": 996.477, "kernels_ms": 591.532, "busy_ms": 603.558, "busy_percent": 60.57,
                           "exposed_copies_ms": 12.026, "loader_percent": 39.64}),
    ("resnet50_workers4", {"span_ms": 801.550, "kernels_ms": 594.868, "busy_ms": 614.413, "busy_percent": 76.65,
                           "exposed_copies_ms": 19.545, "loader_percent": 1.02}),
    ("ddp_a100_rank0of2", {"span_ms": 660.551, "busy_ms": 157.5001, "busy_percent": 23.84,
                           "communication_ms": 46.876493, "exposed_communication_ms": 39.559468,
                           "exposed_copies_ms": 2.284699}),
    ("rocm_mi250", {"gpu_events": 16, "busy_ms": 0.149042, "exposed_copies_ms": 0.038161}),
    ("no_profiler_step", {"gpu_events": 98, "sum_ms": 66.203, "busy_ms": 66.141, "span_ms": 12920.244,
                          "busy_percent": 0.51, "exposed_copies_ms": 55.511}),
    ("compiled_triton", {"gpu_events": 1, "busy_ms": 0.00176}),
])
def test_sums_over_the_whole_file(found, name, figures):
    whole = found(name).whole
    for key, value in figures.items():
        assert whole[key] == pytest.approx(value, abs=0.005 if key.endswith("percent") else 1e-4), key


def test_steps_are_those_that_the_files_mark(found):
    assert found("resnet50_workers0").step_ms["host_median"] == pytest.approx(176.273)
    assert found("resnet50_workers4").step_ms["host_median"] == pytest.approx(126.548)
    assert max(found("resnet50_workers4").found.steps.host_ms) == pytest.approx(181.565)
    assert found("ddp_a100_rank0of2").found.steps.host_ms == pytest.approx([222.442, 219.727, 224.936], abs=1e-3)
    assert found("rocm_mi250").found.steps.host_ms == [9.288291]
    assert found("compiled_triton").step_ms["mean"] == pytest.approx(13336.3, abs=0.1)
    assert found("no_profiler_step").found.steps.source == "whole span"


def test_parts_of_a_job_of_two_ranks(found):
    """An earlier, independent implementation: 17.4, 4.7, 0.3 and 77.6 % idle, none of it for data."""
    percent = found("ddp_a100_rank0of2").percent
    assert percent["compute"] == pytest.approx(17.4, abs=0.5)
    assert percent["exposed communication"] == pytest.approx(4.7, abs=0.5)
    assert percent["exposed copies"] == pytest.approx(0.3, abs=0.5)
    assert (percent["data"], percent["unknown"]) == (0, 0)


def test_collectives_are_counted_with_their_bytes(found):
    reduce, broadcast = found("ddp_a100_rank0of2").collectives
    assert (reduce.name, reduce.calls, reduce.bytes) == ("allreduce", 15, 3 * 102_228_128)
    assert (broadcast.name, broadcast.calls) == ("broadcast", 6)
    assert reduce.largest_bytes / 2**20 == pytest.approx(30.0, abs=0.05)
    [gloo] = found("cpu_only_gloo").collectives
    assert (gloo.calls, round(gloo.shortest_ms), round(gloo.longest_ms)) == (10, 157, 381)


def test_a_slow_loader_and_its_cure(found):
    assert found("resnet50_workers0").verdict.bound == "data"
    assert found("resnet50_workers4").verdict.bound != "data"
    both = compare_traces(FOLDER / "resnet50_workers0.json.gz", FOLDER / "resnet50_workers4.json.gz")
    assert both.by_median == pytest.approx(1.393, abs=0.001)
    assert both.by_mean == pytest.approx(1.252, abs=0.001)
    assert "1.39 times as fast as a by medians" in both.verdict and "no longer data-bound" in both.verdict


@pytest.mark.parametrize("name", ["compiled_triton", "cpu_only_gloo", "no_profiler_step", "rank_missing", "rocm_mi250"])
def test_small_traces_get_no_verdict(found, name):
    report = found(name)
    assert report.verdict.bound is None and report.verdict.sentence.startswith("No verdict: the trace holds ")
    assert report.gpu == (name not in ("cpu_only_gloo", "rank_missing"))
    assert {pattern.name for pattern in report.patterns} == ({"recompiling"} if name == "compiled_triton" else set())


def test_ranks_where_the_files_tell_them(found):
    assert (found("cpu_only_gloo").trace.rank, found("cpu_only_gloo").trace.world) == (34, 300)
    assert found("ddp_a100_rank0of2").trace.world == 2
    for name in ("rank_missing", "rocm_mi250"):
        assert "the trace names no rank, so it is read as one rank alone" in found(name).notes
