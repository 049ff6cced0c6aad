"""The bench of the gated FFN: a whole record of the tiny shape on this machine, and what its checks are made of."""

import pytest

from lfhelpers.bench import ffn, ffn_cases
from lfhelpers.errors import LfError


def test_without_a_gpu_a_record_shows_the_mechanism():
    kept = []
    record = ffn.run(blocks=3, rounds=3, keep=kept.append)
    assert list(record.checks) == ["ffn_error_over_eager", "ffn_saved_bytes_over_eager", "step_tiny_over_off",
                                   "ffn_over_eager"]
    assert 0 < record.checks["ffn_error_over_eager"] <= 1.5 and record.checks["ffn_saved_bytes_over_eager"] < 0.75
    assert record.row("kept eager").value > record.row("kept torch").value > 0
    assert record.row("step of tiny_mb4, on", "x off").value == record.checks["step_tiny_over_off"]
    assert record.settings["failed"] == {} and len(record.settings["notes"]["correctness"]["seeds"]) == ffn.SEEDS
    assert [len(each.rows) for each in kept] == [3, 6, 10], "written after each part"


def found(eager, compiled, chosen):
    return {"seconds": {"eager": [eager] * 3, "compiled": [compiled] * 3, "triton": [chosen] * 3}, "chosen": "triton",
            "failed": {}, "peak_tflops": 989.0, "flops": 1e12}


def test_checks_are_of_the_worst_shape_and_eager_counts_for_the_decoder_alone(monkeypatch):
    answers = iter([
        {"modes": {("bfloat16", True): found(1.2, 1.1, 1.0), ("float32", True): found(1.0, 0.99, 1.0)}, "between": {}},
        {"modes": {("bfloat16", True): found(1.0, 1.05, 1.0)}, "between": {"gb_s": {"product cuda": [4e3]},
                                                                           "peak_gb_s": 4.8e3}}])
    monkeypatch.setattr(ffn.isolated, "call", lambda *args, timeout: next(answers))
    monkeypatch.setattr(ffn.hardware, "device", lambda: ("cuda", ""))
    monkeypatch.setattr(ffn_cases, "CASES", (ffn_cases.CASES[0], ffn_cases.CASES[3]))
    record = ffn.run(("kernels",))
    assert record.checks == pytest.approx({"ffn_over_eager": 1.2, "ffn_over_compile": 0.99})
    assert record.row("action width, 8 k rows: product cuda", "GB/s").value == 4e3
    assert record.row("decoder of full, 4 k rows, bf16, both ways: dispatched", "TFLOP/s").value == 1.0


def test_a_part_that_fails_is_a_sentence_and_one_that_is_not_there_is_refused(monkeypatch):
    def broken(*args, timeout):
        raise LfError("its process was ended by SIGKILL.")
    monkeypatch.setattr(ffn.isolated, "call", broken)
    record = ffn.run(("correctness",))
    assert record.rows == [] and record.settings["failed"] == {"correctness": "its process was ended by SIGKILL."}
    with pytest.raises(LfError, match="--part smal does not exist; did you mean 'small'"):
        ffn.run(("smal",))


def test_liger_is_compared_only_where_it_is_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="liger-kernel isn't installed"):
        ffn_cases.liger()
