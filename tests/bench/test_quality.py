"""The proof of quality over runs that are made up: its pairs, its arithmetic, and that it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lfhelpers import runs
from lfhelpers.bench import jobs, quality
from lfhelpers.bench.jobs import Jobs
from lfhelpers.bench.quality import Options, Proof, preset
from lfhelpers.bench.quality_record import judged, reached, record
from lfhelpers.errors import LfError
from lfhelpers.levers.table import Machine
from lfhelpers.notebook.before_after import quality_table
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run

OPTIONS = Options(seeds=5, steps=400, every=100, target_mse=0.03)
SECONDS = {"as_found": 100.0, "full": 20.0}
filled: list[Recipe] = []
"""Jobs that fill the compile cache."""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs appear at once; `worse` is taken off full's success, `failing` is the job (arm #seed) that fails."""
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    monkeypatch.setattr(quality, "made", lambda base, name: tmp_path)
    monkeypatch.setattr(quality, "demonstrations", lambda task, samples: tmp_path)
    monkeypatch.setattr(jobs, "prepare", lambda job, nproc: job)
    started: list[str] = []
    filled.clear()

    def use(worse: float = 0.0, failing: str = "none") -> list[str]:
        def launch(job: Recipe, nproc: int, watch: bool) -> Run:
            if not job.evaluate.every:
                filled.append(job)
                return empty(job)
            started.append(f"{job.name} #{job.seed}")
            if started[-1] == failing:
                raise LfError("a rank died.")
            return written(job, worse)

        monkeypatch.setattr(jobs, "launch", launch)
        return started

    return use


def empty(job: Recipe) -> Run:
    run = runs.create(job)
    run.write("summary.json", {"samples_per_s": 1.0})
    return run


def written(job: Recipe, worse: float) -> Run:
    """A run whose success rises from 0.3 to 0.9 and whose error falls; both scatter by seed, and a little by arm."""
    seed, arm = np.random.default_rng(job.seed), np.random.default_rng([job.seed, job.name == "full"])
    shift, own = seed.normal(0, 0.03), arm.normal(0, 0.004, 2)
    curve = []
    for step in range(0, job.steps + 1, job.evaluate.every):
        share = step / job.steps
        success = 0.3 + 0.6 * share + (shift + own[0] - worse * (job.name == "full")) * share
        curve.append({"step": step, "samples": step * 32, "seconds": SECONDS[job.name] * share, "success": success,
                      "action_mse": 0.05 * 0.1**share * (1 + own[1]), "success_blind": 0.03, "success_expert": 1.0,
                      "action_mse_blind": 0.06})
    run = runs.create(job)
    run.write("summary.json", {"samples_per_s": 1e3 / SECONDS[job.name],
                               "quality": {"before": curve[0], "curve": curve[1:], "after": curve[-1]}})
    run.set_status("done")
    return run


def test_pairs_share_seed_data_and_all_settings_but_the_levers(made: Callable[..., list[str]]) -> None:
    started = made()
    proof = quality.run(OPTIONS)
    assert started == [f"{arm} #{seed}" for seed in range(5) for arm in ("as_found", "full")]
    first, second = (proof.runs[arm][3].recipe for arm in ("as_found", "full"))
    assert first.seed == second.seed == 3 and first.optimizer.lr == second.optimizer.lr
    assert (first.data.loader, second.data.loader) == ("as_found", "auto")
    for section in ("evaluate", "batch"):
        assert getattr(first, section) == getattr(second, section)
    assert first.data.path == second.data.path and first.workload.base == second.workload.base


def test_an_arm_that_compiles_fills_the_cache_before_anything_is_timed(made: Callable[..., list[str]],
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, by a short job of the same shapes; what the record says of seconds holds for both arms."""
    monkeypatch.setattr(quality, "machine", lambda nproc: Machine("cpu", nproc))
    made()
    proof = quality.run(OPTIONS)
    quality.run(OPTIONS)
    (job,), full = filled, proof.runs["full"][0].recipe
    assert job.name == "full-compiled"
    assert (job.compile, job.batch, job.workload) == (full.compile, full.batch, full.workload)
    assert job.steps < 20 and not (job.evaluate.samples or job.evaluate.episodes)
    settings = record(proof).settings
    assert "compiling" in settings["seconds"] and "in every arm" in settings["seconds"]
    assert set(settings["compile_cache"]) == {"as_found", "full"} and settings["compile_cache"]["full"]["0"] == "off"


def test_five_runs_as_found_of_size_small_take_twenty_minutes() -> None:
    """By the rates that its docstring names; a start and four measurements take about a minute."""
    small = preset("small")
    training = small.steps * small.micro / 85
    assert 5 * (training + 60) / 60 < 20.5 and 5 * small.steps * small.micro / 2700 < 30
    assert small.steps // small.every == 3 and small.target_success < 0.7, "what the end is to be well above"


def test_the_same_quality_in_a_fifth_of_the_time(made: Callable[..., list[str]]) -> None:
    made()
    found = record(quality.run(OPTIONS))
    assert found.checks["time_to_quality_ratio"] == pytest.approx(5, rel=0.05)
    assert found.checks["tost_success_p"] < 0.05 and found.checks["tost_mse_p"] < 0.05
    assert found.checks["success_as_found"] == pytest.approx(0.9, abs=0.04)
    assert found.row("as_found to the target", "s").value == pytest.approx(67, abs=5)
    assert found.settings["floors"]["success_blind"] == 0.03
    assert found.settings["tests"]["success"]["power"] > 0.9
    table = quality_table(found)
    assert table.rows[0][0] == "success" and table.rows[0][-1] == "equal within the margin"


def test_a_planted_loss_of_five_points_is_not_called_equal(made: Callable[..., list[str]]) -> None:
    made(worse=0.05)
    found = record(quality.run(OPTIONS))
    assert found.checks["tost_success_p"] > 0.05 > found.checks["tost_mse_p"]
    assert found.settings["tests"]["success"]["verdict"] == "not shown"


def test_stopped_it_goes_on_with_the_runs_that_are_done_and_never_with_other_margins(
        made: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    started = made()
    kept: list[Proof] = []

    def stopped(proof: Proof) -> None:
        kept.append(proof)
        if len(started) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quality.run(OPTIONS, stopped)
    assert quality.run(OPTIONS).pairs == [0, 1, 2, 3, 4] and len(started) == 10
    quality.run(preset("tiny", seeds=5, margin_success=0.2, minutes=60.0))
    assert len(started) == 20
    assert "Margins, fixed before the runs: success ±5 points, action_mse ±10 % of it. Power" in capsys.readouterr().out


def test_out_of_minutes_it_ends_between_two_runs_and_says_so(made: Callable[..., list[str]],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    started, clock = made(), iter(range(0, 10_000, 50))
    monkeypatch.setattr(quality, "monotonic", lambda: float(next(clock)))
    proof = quality.run(preset("tiny", target_mse=0.03, minutes=6.0))
    assert len(started) == 3 and proof.pairs == [0]
    assert proof.ended == "full #1 would have passed the 6 minutes; call it again to go on"
    assert "success_full" in record(proof).checks and not record(proof).settings["tests"]
    assert quality.run(OPTIONS).pairs == [0, 1, 2, 3, 4] and len(started) == 10


def test_a_run_that_fails_later_is_a_sentence_and_its_pair_is_left_out(made: Callable[..., list[str]]) -> None:
    made(failing="full #2")
    found = record(quality.run(OPTIONS))
    assert found.settings["pairs"] == [0, 1, 3, 4] and found.settings["failed"] == {"full #2": "a rank died."}
    assert found.settings["tests"]["success"]["n"] == 4
    made(failing="as_found #0")
    with pytest.raises(LfError, match="a rank died"):
        quality.run(Options(seeds=3, steps=400, every=100))


def test_a_target_is_met_between_measurements_where_the_later_figure_meets_it() -> None:
    points = [{"seconds": 0.0, "success": 0.2, "action_mse": 0.10},
              {"seconds": 10.0, "success": 0.6, "action_mse": 0.02},
              {"seconds": 20.0, "success": 0.8, "action_mse": 0.02}]
    assert reached(points, OPTIONS) == pytest.approx(15)
    assert reached(points[:2], OPTIONS) is None
    assert reached(points[1:], Options(target_success=0.5, target_mse=0.03)) == 10.0
    assert reached(points, Options(target_success=0.3, target_mse=0.06)) == pytest.approx(5)


def test_no_ratio_where_a_run_misses_the_target(made: Callable[..., list[str]]) -> None:
    made(worse=0.3)
    found = record(quality.run(OPTIONS))
    assert "time_to_quality_ratio" not in found.checks and found.row("full to the target", "s").n == 0
    assert found.settings["failed"] == {"full to the target": "not every run reached it"}


def test_margins_are_absolute_for_shares_and_relative_for_the_error() -> None:
    last = {"success": 0.8, "action_mse": 0.02, "question_accuracy": 0.9, "bleu4": 0.7}
    curves = {"as_found": [[last]] * 3, "full": [[last | {"action_mse": 0.0215}]] * 3}
    found = judged(curves, Options(words=10))
    assert found["action_mse"].difference == pytest.approx(np.log(1.075)) and found["action_mse"].passes
    assert not judged(curves, Options(margin_mse=0.05))["action_mse"].passes
    assert set(found) == {"success", "action_mse", "question_accuracy", "bleu4"}


def test_options_that_prove_nothing_are_refused() -> None:
    with pytest.raises(LfError, match="at least 3 pairs"):
        Options(seeds=2)
    with pytest.raises(LfError, match="no multiple of --every"):
        Options(steps=150)
    with pytest.raises(LfError, match="no base of size 'smal'; did you mean"):
        preset("smal")


def test_its_name_for_jobs_holds_all_but_the_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    files = {Jobs.of("quality", options).file for options in (OPTIONS, preset("tiny", target_mse=0.03, minutes=9.0))}
    assert len(files) == 1
