"""The ladder over runs that are made up, so that its order, its gates and its arithmetic are seen without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lfhelpers import runs
from lfhelpers.bench import climb, jobs, ladder_record, ladder_table
from lfhelpers.bench.climb import Ladder, Options
from lfhelpers.bench.jobs import Jobs
from lfhelpers.diagnose.ceilings import Ceilings
from lfhelpers.diagnose.timelines import Serial
from lfhelpers.errors import LfError
from lfhelpers.levers.table import Machine
from lfhelpers.measure import formats
from lfhelpers.notebook.ladder_charts import climb_bars
from lfhelpers.quality import levers as gates
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run

LAPTOP = Machine("cpu", ranks=1)
TEN = Options(steps=10)
SPEED = {"data.loader": ("as_found", 3.0), "optimizer.fused": (False, 1.5), "log.loss_item": (True, 1.2),
         "compile.scope": ("none", 2.0)}
"""What a step takes longer by, where a field has this value: 10 ms times all that hold."""


def step_ms(job: Recipe) -> float:
    fields = job.flat()
    product = 10.0
    for name, (value, factor) in SPEED.items():
        product *= factor if fields[name] == value else 1.0
    return product


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs appear at once, with the figures of SPEED; `losses` may spoil a job's, `failing` names those that fail."""
    monkeypatch.setenv("LFHELPERS_RUNS", str(tmp_path))
    monkeypatch.setattr(jobs, "prepare", lambda job, nproc: job)
    monkeypatch.setattr(gates, "gradient_errors", lambda recipes, timeout=0: dict.fromkeys(recipes, 0.01))
    started: list[str] = []

    def use(losses: Callable[[Recipe, int], float] = lambda job, step: 1 / step, failing: str = "none") -> list[str]:
        def launch(job: Recipe, nproc: int, watch: bool) -> Run:
            started.append(job.name)
            if failing in job.name:
                raise LfError(f"{job.name}: no memory.")
            return written(job, losses)

        monkeypatch.setattr(jobs, "launch", launch)
        return started

    return use


def written(job: Recipe, losses: Callable[[Recipe, int], float]) -> Run:
    run, step = runs.create(job), step_ms(job)
    wait = 20.0 if job.data.loader == "as_found" else 0.5
    parts = {"data_wait": wait, "host_to_device": 0.0, "forward": (100 - wait) / 2, "backward": (100 - wait) / 2,
             "communication": 0.0, "optimizer": 0.0, "captured": 0.0, "other": 0.0}
    run.append_steps([{"step": number, "loss": losses(job, number), "probe": False}
                      for number in range(1, job.steps + 1)])
    run.write("summary.json", {
        "device": "cpu", "hardware": "a toy", "ranks": 1, "host_ms": step,
        "samples_per_s": 1e3 * job.batch.micro / step, "ranks_ms": {},
        "step_ms": {"median": step, "mean": step, "p95": step}, "steps": {"timed": job.steps},
        "mfu": {"value": 0.3, "convention": "made up", "peak_tflops": 1.0}, "memory": {"peak_gib": None},
        "utilisation": {"gpu_percent": 97.0, "gpu_watts": 400.0},
        "report": {"percent": parts, "ms": {part: share * step / 100 for part, share in parts.items()}}})
    run.set_status("done")
    return run


def climbed(options: Options = TEN, where: Machine = LAPTOP) -> Ladder:
    ladder = Ladder(options, Jobs.of("ladder", options), where)
    ladder.climb()
    return ladder


def test_from_as_found_to_the_full_stack_and_back(made: Callable[..., list[str]]) -> None:
    made()
    record = ladder_record.record(climbed())
    assert record.checks["full_over_as_found"] == pytest.approx(3 * 1.5 * 1.2 * 2)
    assert record.checks["full_over_competent"] == pytest.approx(2)
    assert record.checks["gates_passed"] == record.checks["gates_total"] == 10
    assert (record.checks["data_wait"], record.checks["gpu_utilisation"]) == (0.005, 0.97)
    assert record.row("- compiled blocks", "x full").value == pytest.approx(0.5)
    assert record.row("full", "J a sample").value == pytest.approx(400 / 1600)
    assert record.settings["failed"]["+ CUDA graph"] == "there is no GPU, and a CPU has no graphs to record"
    assert "bf16" in record.settings["failed"]["- fused AdamW"]  # its masters need the fused update
    assert record.settings["next_bottleneck"]["full"] == "forward, 50 % of the step"


def test_anchors_stand_at_the_start_between_the_others_and_at_the_end(made: Callable[..., list[str]]) -> None:
    started = made()
    ladder = climbed()
    anchors = [name for name in started if name in ("as-found", "competent", "full")]
    assert anchors == ["as-found", *["as-found", "competent", "full"] * 2] and started[-1] == "full"
    reached = [rung for rung in ladder.rungs if rung.kind == "anchor"]
    assert [len(rung.runs) for rung in reached] == [3, 3, 3], "the first of competent and full are rungs' own"
    assert {rung.runs[0].id for rung in reached} <= {rung.runs[0].id for rung in ladder.rungs
                                                     if rung.kind == "add" and rung.runs} | {reached[0].runs[0].id}


def test_a_lever_that_changes_the_losses_is_refused_and_the_ladder_goes_on_without_it(
        made: Callable[..., list[str]]) -> None:
    made(losses=lambda job, step: 1 / step + 1e-7 * (not job.log.loss_item))
    record = ladder_record.record(climbed())
    said = record.settings["failed"]["+ no read in the step"]
    assert said.startswith("refused, since its gate (exact) is not passed: 6 of 6 losses differ, first that of step 1")
    assert record.checks["gates_passed"] == record.checks["gates_total"] - 1 == 9
    assert record.checks["full_over_as_found"] == pytest.approx(3 * 1.5 * 2)  # without the 1.2 of the refused one


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


def test_without_its_first_rung_there_is_no_ladder(made: Callable[..., list[str]]) -> None:
    made(failing="as-found")
    with pytest.raises(LfError, match="nothing to stand on: as-found: no memory"):
        climbed()


def test_a_stopped_ladder_goes_on_with_the_jobs_that_are_done(made: Callable[..., list[str]]) -> None:
    started = made(failing="full")
    first = climbed(options := Options(steps=10))
    done = len(started)
    assert [len(rung.runs) for rung in first.rungs if rung.name == "full"] == [1], "the last rung's alone"
    made()
    again = Ladder(options, Jobs.of("ladder", options), LAPTOP)
    again.climb()
    assert set(started[done:]) == {"full"} and len(again.jobs.done) == len(first.jobs.done) + 2
    climbed(Options(steps=11))
    assert started[done + 2] == "as-found"  # other settings: another ladder


def test_a_slower_and_a_faster_hour_widen_every_interval(made: Callable[..., list[str]],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    ladder = climbed()
    rung = next(rung for rung in ladder.rungs if rung.name == "as found")
    for turn, run in enumerate(rung.runs):
        run.write("summary.json", run.summary | {"samples_per_s": run.summary["samples_per_s"] * (1 + 0.1 * turn)})
    record = ladder_record.record(ladder)
    row = record.row("+ fused AdamW", "x as found")
    assert record.aa_spread > 0.08 and row.high / row.value == pytest.approx(1 + record.aa_spread)


def test_chosen_levers_alone_and_an_unknown_one(made: Callable[..., list[str]]) -> None:
    started = made()
    climbed(Options(steps=10, anchors=1, without=False, levers=("fused AdamW", "compiled blocks")))
    assert started == ["as-found", "fused-AdamW", "compiled-blocks"]
    with pytest.raises(LfError, match="no lever is named 'fused Adam'; did you mean"):
        climbed(Options(levers=("fused Adam",)))


def test_table_and_picture_tell_what_was_refused(made: Callable[..., list[str]]) -> None:
    made()
    lines = ladder_table.lines(ladder_record.record(climbed()))
    by_name = {line["rung"]: line for line in lines}
    graph = by_name["+ CUDA graph"]
    assert graph["samples/s"] is None and graph["why not"].startswith("there is no GPU")
    assert by_name["+ fused AdamW"]["gate"] == "reordered: passed" and by_name["full"]["gate"] == ""
    chart = climb_bars(lines)
    assert chart.alt.startswith("The full stack reaches 1,600 samples/s, 10.80 times as found and 2.00 times compet")
    assert "Without workers do all preprocessing it keeps 33 % of its rate" in chart.alt


def test_what_a_rungs_trace_promised_stands_beside_what_the_next_one_won(
        made: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    made()

    def promised(run: Run) -> Ceilings:
        """A step of which half is waiting for data, as found; later ones have no evidence."""
        if run.recipe.data.loader != "as_found":
            raise LfError("no trace")
        return Ceilings(Serial(20.0, {"data": 10.0}, {"data": 0.2}), "made up")

    monkeypatch.setattr(climb.tiers, "of_run", promised)
    ladder = climbed()
    assert all(rung.job.log.profile for rung in ladder.rungs if rung.runs)
    record = ladder_record.record(ladder)
    found = record.settings["predictions"]
    assert list(found) == ["+ workers do all preprocessing"]
    score = found["+ workers do all preprocessing"]
    assert (score["low"], score["high"]) == (pytest.approx(20 / 12), 2.0)
    assert (score["measured"], score["outside"]) == (pytest.approx(3.0), pytest.approx(2 / 3 - 1))
    assert record.row("+ fused AdamW", "x the rung before").value == pytest.approx(1.5)
    line = next(line for line in ladder_table.lines(record) if line["rung"] == "+ workers do all preprocessing")
    assert (line["predicted"], line["x before"]) == ("1.67 to 2.00", pytest.approx(3.0))
    assert record.settings["next_bottleneck"]["as found"] == \
        "forward, 40 % of the step; a loader that is never waited for could give 1.67x to 2.00x"


def test_what_a_machine_can_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setattr(climb.shutil, "which", lambda name: None)
    laptop = Machine("cpu", 2, compiler=False, bf16=formats.has_bf16("cpu"))
    assert climb.machine(2) == laptop or climb.machine(2).device == "cuda"
