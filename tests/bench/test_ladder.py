"""The ladder over runs that are made up, so that its order and its arithmetic are seen without training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lfhelpers.bench import before_after, climb, ladder_record, ladder_table
from lfhelpers.bench.climb import Ladder, Options
from lfhelpers.bench.jobs import Jobs
from lfhelpers.diagnose.ceilings import Ceilings
from lfhelpers.diagnose.timelines import Serial
from lfhelpers.errors import LfError
from lfhelpers.levers.table import Machine
from lfhelpers.measure import formats
from lfhelpers.notebook.ladder_charts import climb_bars
from lfhelpers.runs import Run
from tests.bench.made_up import LAPTOP, climbed


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


def test_a_lever_that_is_left_out_leaves_a_field_as_the_lever_before_it_had_set_it(
        made: Callable[..., list[str]]) -> None:
    """Workers set data.loader, and so does the measured loader: without the later one, the workers' engine is left."""
    made()
    ladder = climbed()
    jobs = {rung.name: rung.job for rung in ladder.rungs}
    assert (ladder.start.data.loader, jobs["full"].data.loader) == ("as_found", "auto")
    assert jobs["- measured loader"].data.loader == "webdataset"
    assert jobs["- measured loader"].with_(**{"data.loader": "auto"}) == jobs["full"]
    assert jobs["- workers do all preprocessing"].data.loader == "auto"


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


def test_a_run_that_two_rungs_share_is_no_repeat(made: Callable[..., list[str]]) -> None:
    """Climbed once, no recipe has run twice; climbed twice, each interval is of two runs that differ."""
    made()
    two = {"without": False, "levers": ("fused AdamW", "compiled blocks")}
    once = ladder_record.record(climbed(Options(steps=10, anchors=1, **two)))
    assert math.isnan(once.aa_spread) and math.isnan(once.row("full", "x as found").high)
    caption = str(ladder_table.table(once).caption)
    assert caption.endswith("No recipe was run twice, so ratios have no interval.") and "nan" not in caption
    assert before_after.of_ladder(once).spread == 0.0, "which is not known"
    ladder = climbed(Options(steps=10, anchors=2, **two))
    again = next(rung for rung in ladder.rungs if rung.name == "full").runs[-1]
    again.write("summary.json", again.summary | {"samples_per_s": 1.1 * again.summary["samples_per_s"]})
    assert ladder_record.record(ladder).aa_spread == pytest.approx(0.1), "of the one pair alone"


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
    assert "Without compiled blocks it keeps 50 % of its rate" in chart.alt


def test_the_command_leaves_the_picture_beside_the_record(made: Callable[..., list[str]], command: Callable[..., Any],
                                                          tmp_path: Path) -> None:
    made()
    words = ["ladder", "--steps", 10, "--only-climb", "--lever", "fused AdamW", "--out", tmp_path / "ladder.json"]
    code, out, _ = command(*words, "--svg", picture := tmp_path / "pictures" / "ladder.svg")
    assert code == 0 and out.endswith(f"picture: {picture}\n")
    drawn = picture.read_text()
    assert "+ fused AdamW" in drawn and "The full stack reaches" in drawn and "Date" not in drawn
    code, _, error = command(*words, "--svg", tmp_path / "ladder.json" / "ladder.svg")
    assert code == 2 and "can't be written: " in error and error.endswith("name another file with --svg.\n")


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
