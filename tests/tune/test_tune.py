"""Real jobs of a toy workload: a study over two ranks, and how real failures end; the command."""

import psutil
import pytest

from lfhelpers import runs
from lfhelpers.bench import climb
from lfhelpers.diagnose import verbs
from lfhelpers.errors import LfError
from lfhelpers.levers.table import Machine
from lfhelpers.notebook.study_charts import two_knobs
from lfhelpers.recipe import recipe
from lfhelpers.tune import plan, space, trial, tune
from lfhelpers.tune.options import Options
from lfhelpers.tune.report import Result, table
from lfhelpers.tune.search import Search
from lfhelpers.tune.ways import of_lines
from tests.tune.made_up import written


def test_each_trial_is_one_job_of_all_ranks_and_a_stopped_one_leaves_nothing_behind(toy, runs_root):
    """Ranks that draw for themselves, or are stopped one by one, hang: case 46 of the tests' log."""
    started = []

    def planted(job, nproc, limit_s, slower):
        started.append(job)
        if len(started) == 1:  # the base's own job is made up, to be quick
            return trial.judged(written(job, lambda job, step: 10.0, 1.0))
        if len(started) == 2:
            endless = job.with_(steps=1_000_000, **{"log.probe": False})
            return trial.execute(endless, nproc, limit_s, lambda run: len(run.steps()) >= 2)
        return trial.execute(job, nproc, limit_s, slower)

    options = Options("real", 3, nproc=2, steps=8, knobs=("buckets",))
    found = Search(options, toy, Machine("cpu", 2), execute=planted).go()
    lines = Result(found).lines
    assert [line["ended"] for line in lines] == ["done", "slower", "over its limits"]
    assert lines[2]["why"].startswith("gate ") and lines[2]["run"] == runs.find()[-1].id  # the base's losses were 10
    assert lines[2]["low"] <= lines[2]["samples/s"] <= lines[2]["high"] and runs.find()[-2].status["state"] == "stopped"
    assert runs.find()[-1].recipe.ddp == started[2].ddp != started[1].ddp
    assert not [child for child in psutil.Process().children(recursive=True)
                if child.status() != psutil.STATUS_ZOMBIE and "lfhelpers.launch" in " ".join(child.cmdline())]
    assert table(Result(found)).row_count == 3


@pytest.mark.long
def test_jobs_that_really_fail_say_how_and_leave_the_study_usable(toy, runs_root):
    """A study of one good trial after three that fail, each in another way."""
    base = toy.with_(**{"workload.use": "tests.tune.spoilt:Spoilt"})
    spoilt = {"NaN": {"batch.micro": 4, "batch.accumulate": 2}, "killed": {"batch.micro": 2, "batch.accumulate": 4}}
    spoilt |= {"no memory": spoilt["NaN"] | {"optimizer.fused": False}, "good": {"optimizer.fused": False}}
    options = Options("spoilt", 1 + len(spoilt), steps=8, knobs=("micro-batch", "optimizer"))
    search = Search(options, base, Machine("cpu", 1, own=True, bf16=False),
                    starts={name: base.with_(**fields) for name, fields in spoilt.items()})
    found = {line["start"]: line for line in Result(search.go()).lines}
    assert found["good"]["ended"] in ("done", "slower"), "it may be stopped early, by what this machine does besides"
    assert {name: line["ended"] for name, line in found.items() if name != "good"} == {
        "base": "done", "NaN": "not finite", "killed": "killed", "no memory": "out of memory"}
    assert found["killed"]["why"].startswith("rank 0 was killed (signal 9)")
    assert found["no memory"]["why"].endswith("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "finite" in found["NaN"]["why"] or "skipped" in found["NaN"]["why"]
    assert found["NaN"]["samples/s"] is None and search.incumbent.user_attrs["samples_per_s"] > 0
    assert Result(search).record().checks["failed_trials"] == 3 and search.ended == "all 5 trials are done"


@pytest.mark.long
@pytest.mark.alone
def test_a_study_of_six_trials_at_size_tiny_fills_the_picture_of_its_two_knobs(tabletop_shards, runs_root):
    """The study of lesson 06, on the real model, from the search to the table of three ways."""
    knobs = ("packed frozen weights", "micro-batch")
    small = ("workload.size=tiny", "batch.micro=8", "device=cpu", "data.workers=1", "log.skip=2")
    found = tune("six", "competent", *small, f"data.path={tabletop_shards}", trials=6, steps=8, starts=("full",),
                 knobs=knobs, verify=False)
    lines = found.lines
    assert len(lines) == 6 and {line["ended"] for line in lines} <= {"done", "slower", "over its limits"}
    assert [line["start"] for line in lines[:2]] == ["base", "full"] and found.search.minutes < 3
    chart = two_knobs(lines, *knobs)
    assert {row[0] for row in chart.table.rows} == {"8 x 1", "4 x 2", "2 x 4"}
    assert len(chart.table.columns) == 3 and "in one position alone" not in chart.alt
    assert [row["jobs"] for row in of_lines(lines)] == [6, 4], "three positions away from the base, one knob at a time"


def test_a_job_that_hangs_is_ended_at_the_limit(monkeypatch, runs_root):
    class Hanging:
        run, stopped = runs.create(recipe()), False

        def poll(self):
            return "stopped" if self.stopped else "running"

        def stop(self):
            self.stopped = True

    handle = Hanging()
    monkeypatch.setattr(trial, "start", lambda job, nproc: handle)
    hung = trial.execute(recipe(), 1, 0.3, lambda run: False)
    assert (hung.ended, hung.run, handle.stopped) == ("hang", handle.run, True)


def test_a_dry_run_prints_the_space_and_the_budget(command, toy, runs_root):
    words = [f"data.path={toy.data.path}", f"workload.use={toy.workload.use}", "recipe=competent"]
    code, out, _ = command("tune", "dry", *words, "--dry-run", "--trials", 6, "--knob", "prefetch", "--knob", "depth")
    assert code == 0 and "study dry: 2 knobs" in out and "1, 2, 4" in out.replace("2, 1, 4", "1, 2, 4")
    assert "9 combinations; budget: 6 trials of 51 steps, at most 30 minutes; first: the base, competent, full" in out
    assert not (runs_root / "studies").exists()
    assert command("tune", "dry", *words, "--allow", "all")[2].startswith(
        "lfhelpers: --allow all does not exist; take exact, reordered or changed.")


def test_a_study_needs_a_plain_name(toy, runs_root):
    with pytest.raises(LfError, match=r"a study can't be named '../x'"):
        plan("../x", toy)


def test_ceilings_give_start_values(toy, runs_root, monkeypatch):
    class Found:
        def path(self):
            return [("data", 1.5), ("pointwise", 2.0), ("late rank", 2.1)]

    monkeypatch.setattr(verbs, "ceilings", lambda run: Found())
    monkeypatch.setattr(climb, "machine", lambda nproc, use: Machine("cpu", nproc))
    search = plan("starts", toy, starts=(), evidence=object())
    assert list(search.starts) == ["ceiling of data", "ceiling of pointwise", "ceiling of late rank"]
    near = space.labels(search.knobs, search.starts["ceiling of pointwise"])
    assert near["compile"] == "blocks"
