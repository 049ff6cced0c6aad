"""Real jobs of a toy workload: a study over two ranks, and how real failures end; the command."""

import psutil
import pytest

from lfhelpers import runs
from lfhelpers.bench import climb
from lfhelpers.diagnose import verbs
from lfhelpers.errors import LfError
from lfhelpers.levers.table import Machine
from lfhelpers.recipe import recipe
from lfhelpers.tune import plan, space, trial
from lfhelpers.tune.options import Options
from lfhelpers.tune.report import Result, table
from lfhelpers.tune.search import Search
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
