"""The before/after table over made-up records: what is measured, what is claimed, and what a machine can't show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lfhelpers import runs
from lfhelpers.bench import article, before_after
from lfhelpers.bench.before_after import Measured
from lfhelpers.errors import LfError
from lfhelpers.measure.record import Record, Row
from lfhelpers.notebook.before_after import results
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run

RATES = {"as found": 40.0, "+ workers do all preprocessing": 90.0, "competent": 100.0, "+ CUDA graph": 160.0,
         "full": 200.0}


def ladder(rates: Mapping[str, float] = RATES, device: str = "cuda", nproc: int = 1, spread: float = 0.02,
           exposed: float = 2.0) -> Record:
    rows = []
    for name, rate in rates.items():
        figures = {"samples/s": rate, "ms": 1e3 * 16 * nproc / rate, "% exposed communication": exposed,
                   "% of the time with a kernel on the GPU": 70.0 if name == "as found" else 97.0, "% MFU": rate / 5}
        rows += [Row(name, value, value, value, unit, 1) for unit, value in figures.items()]
    return Record("ladder", {"size": "full", "micro": 16, "nproc": nproc, "device": device}, rows, {}, spread)


def proof(ratio: float = 4.0, p: float = 0.01) -> Record:
    rows = [Row(f"{arm} to the target", seconds, seconds, seconds, "s", 5)
            for arm, seconds in (("as_found", 100.0), ("full", 100 / ratio))]
    checks = {"time_to_quality_ratio": ratio, "tost_success_p": p, "tost_mse_p": 0.001, "success_as_found": 0.82,
              "success_full": 0.83}
    return Record("quality", {"size": "small"}, rows, checks, 0.0, hardware={"gpus": [{"name": "a GPU"}]})


def by_figure(measured: Measured, quality: Record | None = None) -> dict[str, dict[str, Any]]:
    return {line["figure"]: line for line in before_after.lines(measured, quality)}


def test_each_line_of_the_article_has_our_columns_its_claim_and_a_verdict() -> None:
    found = by_figure(before_after.of_ladder(ladder()), proof())
    line = found[article.PER_GPU]
    assert [line[name] for name in before_after.RECIPES] == [40.0, 100.0, 200.0]
    assert line["the article"] == "125 to 288 samples/s, 2.30 times" and line["verdict"] == "exceeded: 5.00 times"
    assert found[article.STEP_TIME]["verdict"] == "exceeded: 5.00 times"
    assert found[article.BUSY]["verdict"] == "reproduced"
    assert found["time to the target quality [s], size small"]["verdict"] == "exceeded: 4.00 times"
    assert found["quality (success)"] == {
        "figure": "quality (success)", "as_found": 0.82, "competent": None, "full": 0.83,
        "the article": "equal within statistical error", "verdict": "reproduced"}
    assert found["MFU [%]"]["the article"] == "not given"


def test_what_one_gpu_or_a_cpu_can_not_show_says_why() -> None:
    one = by_figure(before_after.of_ladder(ladder()))
    assert one[article.TOTAL]["verdict"] == "not reproducible here because one GPU shows nothing of many"
    assert one[article.EXCHANGE]["verdict"] == "not reproducible here because one GPU exchanges no gradients"
    assert one[article.TO_TARGET]["verdict"].startswith("not reproducible here because there is no record")
    cpu = by_figure(before_after.of_ladder(ladder(device="cpu")))
    assert cpu[article.PER_GPU]["verdict"] == "not reproducible here because there is no GPU"


def test_two_gpus_show_the_exchange_and_rates_are_told_per_gpu() -> None:
    found = by_figure(before_after.of_ladder(ladder(nproc=2, exposed=6.0)))
    assert found[article.PER_GPU]["full"] == 100.0 and found[article.TOTAL]["full"] == 200.0
    assert found[article.EXCHANGE]["verdict"] == "not reproduced: 6.0 % at the end"
    better = by_figure(before_after.of_ladder(ladder(nproc=2)))
    assert better[article.EXCHANGE]["verdict"] == "reproduced, but as found it was there already"


@pytest.mark.parametrize(("full", "verdict"), [(92.5, "reproduced: 2.31 times"), (91.5, "reproduced: 2.29 times"),
                                               (88.0, "not reproduced: 2.20 times")])
def test_a_ratio_is_reproduced_within_the_spread(full: float, verdict: str) -> None:
    measured = before_after.of_ladder(ladder(RATES | {"full": full}))
    assert by_figure(measured)[article.PER_GPU]["verdict"] == verdict


def test_equality_that_is_not_shown_is_not_called_reproduced() -> None:
    found = by_figure(before_after.of_ladder(ladder()), proof(p=0.2))
    assert found["quality (success)"]["verdict"] == "not shown for success: see power and margins"
    worded = proof()
    worded.checks["tost_words_p"] = 0.9
    found = by_figure(before_after.of_ladder(ladder()), worded)
    assert found["quality (success)"]["verdict"] == "not shown for words: see power and margins"
    worded.checks["tost_words_p"] = 0.01
    assert by_figure(before_after.of_ladder(ladder()), worded)["quality (success)"]["verdict"] == "reproduced"


@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_a_proof_that_was_cut_short_says_how_many_pairs_it_has(pairs: int) -> None:
    """Below three pairs there are no tests, and before the first one no figures either."""
    whole = proof()
    kept = {name: value for name, value in whole.checks.items() if pairs and not name.startswith("tost")}
    short = replace(whole, checks=kept, rows=whole.rows if pairs else [],
                    settings={"size": "small", "pairs": list(range(pairs)), "tests": {}})
    found = by_figure(before_after.of_ladder(ladder()), short)
    assert found["quality (success)"]["verdict"].startswith(f"not shown: {pairs} pair")
    assert found["quality (success)"]["full"] == (0.83 if pairs else None)
    assert results(before_after.of_ladder(ladder()), short).text()
    if pairs:
        assert found["time to the target quality [s], size small"]["verdict"] == "exceeded: 4.00 times"
    else:
        assert found[article.TO_TARGET]["verdict"].endswith("not all runs reached the target")


def test_loongforges_stages_stand_beside_rungs_of_their_kind_with_both_micro_batches() -> None:
    found = before_after.published(before_after.of_ladder(ladder()))
    first, second, third, whole = found
    assert (first["LoongForge, micro-batch 16"], first["here, micro-batch 16"]) == (1.41, pytest.approx(2.25))
    assert second["our rung"] == "not climbed" and second["here, micro-batch 16"] is None
    assert (third["LoongForge, micro-batch 16"], third["our rung"]) == (2.31, "CUDA graph")
    assert whole["here, micro-batch 16"] == pytest.approx(5.0)


def test_the_arithmetic_in_words() -> None:
    assert article.less_time(2.3) == pytest.approx(56.5, abs=0.05)
    first, ours, days = before_after.sentences(before_after.of_ladder(ladder()))
    assert first == "The article's 1024 ms and 445 ms: 2.3 times the throughput is 56.5 % less time (and 130 % more " \
                    "throughput)."
    assert "5 times the throughput is 80.0 % less time" in ours and "size full, 16 samples" in ours
    assert "14 days would be 6.1, not 6.5" in days
    assert before_after.in_words(0.8) == "0.8 times the throughput is 25.0 % more time"


def test_a_ladder_that_is_not_done_and_runs_of_different_batches_are_refused(
        tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LfError, match="no figures of competent, full; let `lfhelpers ladder` go on"):
        before_after.of_ladder(ladder({"as found": 40.0}))
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    made = [_run(name, micro) for name, micro in (("as_found", 16), ("competent", 16), ("full", 32))]
    with pytest.raises(LfError, match="must be of one device, size, batch"):
        before_after.of_runs(*made)
    measured = before_after.of_runs(made[0], made[1], _run("full", 16))
    assert measured.pair("samples/s") == (80.0, 80.0) and measured.rungs == {}
    assert not {"GiB at the peak", "J a sample"} & set(measured.figures["full"])


def _run(name: str, micro: int) -> Run:
    run = runs.create(recipe(name, **{"batch.micro": micro}))
    run.write("summary.json", {
        "device": "cuda", "ranks": 1, "micro": micro, "accumulate": 1, "samples_per_s": 5.0 * micro,
        "step_ms": {"median": 200.0}, "mfu": {"value": None}, "memory": {"peak_gib": None},
        "report": {"percent": {"data_wait": 1.0, "communication": 0.0}}, "utilisation": {"gpu_percent": 90.0}})
    return run
