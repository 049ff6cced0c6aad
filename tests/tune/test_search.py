"""A study over made-up jobs: what it finds, what it never chooses, what it survives, and what it refuses."""

import itertools
import math
import multiprocessing
import threading
import warnings
from types import SimpleNamespace

import optuna
import pytest

from lfhelpers.errors import LfError
from lfhelpers.launch.failures import ending
from lfhelpers.measure import hardware
from lfhelpers.recipe import recipe
from lfhelpers.tune import search as loop
from lfhelpers.tune import space, storage
from lfhelpers.tune.trial import Outcome, block_rates, failure, first_line, judged
from tests.tune.made_up import Jobs, rate, search, written

pytestmark = pytest.mark.usefixtures("runs_root")
BEST = 100 * 1.5 * 2 * 1.1


def compiled(job):
    return job.compile.scope == "blocks"


def test_it_finds_the_fastest_job_and_runs_none_twice():
    jobs = Jobs()
    found = search("plain", 12, jobs).go()
    assert found.incumbent.user_attrs["samples_per_s"] == pytest.approx(BEST)
    assert len(found.finished) == 12 and found.ended == "all 12 trials are done"
    keys = [storage.key(job) for job in jobs.started if job.name.startswith("trial")]
    assert len(keys) == len(set(keys)) == 12
    assert {job.batch.micro * job.batch.accumulate for job in jobs.started} == {16}
    paired = [trial for trial in found.finished if "paired_ratio" in trial.user_attrs]
    assert len([job for job in jobs.started if job.name.startswith("beside")]) == len(paired) >= 1


def test_start_values_come_first():
    found = search("starts", 3, Jobs())
    found.starts = {"hand-set": recipe("competent", "compile.scope=blocks", "data.loader=threads"),
                    "same as the base": recipe()}
    found.go()
    assert [trial.user_attrs.get("start") for trial in found.finished[:2]] == ["base", "hand-set"]
    assert found.finished[1].value == pytest.approx(300)


def test_a_faster_job_that_learns_less_is_never_chosen():
    found = search("quality", 10, Jobs(losses=lambda job, step: (1.03 if compiled(job) else 1.0) / step)).go()
    assert found.incumbent.user_attrs["samples_per_s"] == pytest.approx(BEST / 2)
    planted = [trial for trial in found.finished if found.job(trial).compile.scope == "blocks" and trial.value]
    assert planted and all(trial.user_attrs["limits"]["quality"] == pytest.approx(0.01) for trial in planted)
    assert not any(trial.user_attrs["took_over"] for trial in planted)


def test_losses_outside_the_band_fail_the_gate_also_where_they_are_lower():
    found = search("gate", 8, Jobs(losses=lambda job, step: (0.97 if compiled(job) else 1.0) / step)).go()
    planted = [trial for trial in found.finished if found.job(trial).compile.scope == "blocks" and trial.value]
    assert planted and all(trial.user_attrs["limits"]["quality"] < 0 < trial.user_attrs["limits"]["gate"]
                           and not trial.user_attrs["took_over"] for trial in planted)


def test_what_fails_is_recorded_and_the_study_goes_on():
    ways = ["out of memory", "hang", "not finite", "crash"]
    places = itertools.product(["threads", "webdataset"], [1, 2])
    planted = {way: recipe("competent", f"data.loader={loader}", f"data.workers={workers}", "compile.scope=blocks")
               for way, (loader, workers) in zip(ways, places, strict=True)}

    def fail(job):
        if job.frozen.packed:
            raise LfError("no shards.")
        return next((Outcome(way, f"{way}, planted.") for way, other in planted.items()
                     if (job.data, job.compile) == (other.data, other.compile)), None)

    found = search("failing", 7, Jobs(failing=fail))
    found.starts = planted | {"can't start": recipe("competent", "frozen.packed=true")}
    found.go()
    failed = {trial.user_attrs["start"]: trial.user_attrs for trial in found.finished[1:5]}
    assert [failed[way]["ended"] for way in ways] == ways
    assert [failed[way]["why"] for way in ways] == [f"{way}, planted." for way in ways]
    assert (found.finished[5].user_attrs["ended"], found.finished[5].user_attrs["why"]) == ("crash", "no shards.")
    assert len(found.finished) == 7 and found.incumbent.user_attrs["ended"] == "done"


@pytest.mark.parametrize("figure", [0.0, math.inf, math.nan, -1.0])
def test_a_rate_that_no_job_has_is_no_figure(figure):
    run = written(recipe(), lambda job, step: 1.0, figure)
    assert judged(run).ended == "no figure"


def test_losses_that_are_not_finite_are_no_result():
    assert judged(written(recipe(), lambda job, step: math.nan if step > 45 else 1.0)).ended == "not finite"
    assert judged(written(recipe(), lambda job, step: math.nan if step < 5 else 1.0)).ended == "done"


def test_reports_are_told_apart():
    reports = {"out of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
               "not finite": "steps 3 to 52 had no finite loss and gradients (loss nan)", "crash": "KeyError: 'name'"}
    assert [failure(text) for text in reports.values()] == list(reports)
    after = "rank 1 failed:\n\nKeyError: 'name'\n\nAfter that rank 0 was killed (signal 9), often out of memory."
    assert failure(after) == "crash", "what ended the others is not the cause"
    for code in (-9, 137):
        assert failure(f"rank 0 {ending(code)}; it printed nothing.") == "killed"
    assert first_line("rank 1 failed:\n\nTraceback\n  KeyError: 'x'\n\nAfter that rank 0 exited.\nLogs: /logs") == \
        "rank 1 failed: KeyError: 'x'"


def test_slower_jobs_are_stopped_early_and_never_the_base():
    found = search("pruned", 8, Jobs()).go()
    slower = [trial for trial in found.finished if trial.user_attrs["ended"] == "slower"]
    assert slower and all(rate(found.job(trial)) < BEST for trial in slower)
    assert all(trial.state == optuna.trial.TrialState.PRUNED for trial in slower)
    assert found.finished[0].user_attrs["start"] == "base" and found.finished[0].value == pytest.approx(100)


def test_a_find_that_only_the_hour_made_does_not_take_over(monkeypatch):
    """All that comes after the base is twice as fast, the incumbent beside it too: nothing was found."""
    monkeypatch.setattr("tests.tune.made_up.FASTER", {})
    jobs = Jobs()
    monkeypatch.setattr("tests.tune.made_up.rate", lambda job: 100.0 if len(jobs.started) == 1 else 200.0)
    found = search("hour", 5, jobs).go()
    assert found.incumbent.number == 0
    assert any("no change" in trial.user_attrs.get("paired", "") for trial in found.finished)


def test_without_its_base_there_is_no_study_and_it_is_tried_again():
    with pytest.raises(LfError, match="nothing to stand on, the base ended with hang: planted"):
        search("base", 3, Jobs(failing=lambda job: Outcome("hang", "planted"))).go()
    assert len(search("base", 3, Jobs()).go().finished) == 3


def test_a_budget_in_minutes_counts_all_calls(monkeypatch):
    clock = itertools.count(step=30)  # a job takes half a minute
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    first = search("minutes", 9, Jobs(), minutes=1.2).go()
    assert len(first.finished) == 2 and first.ended == "another trial would pass 1.2 minutes"
    jobs = Jobs()
    assert len(search("minutes", 9, jobs, minutes=1.2).go().finished) == 2 and jobs.started == []


def test_a_small_space_ends_the_study_before_its_budget():
    jobs = Jobs()
    found = search("small", 9, jobs, knobs=("compile",)).go()
    assert len(found.finished) == 2 and found.ended.startswith("30 proposals in a row were known or refused")
    assert [job.compile.scope for job in jobs.started if job.name.startswith("trial")] == ["none", "blocks"]


def test_a_study_killed_twice_ends_with_exactly_its_budget():
    _killed(job=2)
    _killed(job=2)
    left = optuna.load_study(study_name="killed", storage=f"sqlite:///{storage.folder('killed') / 'study.db'}")
    assert left.trials[-1].state == optuna.trial.TrialState.RUNNING  # for ever, if nobody looked
    jobs = Jobs()
    found = search("killed", 6, jobs).go()
    states = [trial.state.name for trial in found.study.trials]
    assert len(found.finished) == 6 and "RUNNING" not in states and states.count("FAIL") == 2
    lost = [trial for trial in found.study.trials if trial.user_attrs.get("ended") == "killed"]
    again = {trial.user_attrs["again"]: trial.params for trial in found.study.trials if "again" in trial.user_attrs}
    assert again == {trial.number: trial.params for trial in lost}


def _killed(job):
    """A study in a process of its own, killed with -9 in the middle of its job of this number."""
    context = multiprocessing.get_context("fork")  # quick: everything is imported
    receiver, sender = context.Pipe(duplex=False)

    def started(one):
        sender.send(one.name)
        if len(held.started) == job:
            threading.Event().wait()

    held = Jobs(failing=started)
    with warnings.catch_warnings():  # Python 3.12 warns of any thread, also of those that sleep in libraries
        warnings.simplefilter("ignore", DeprecationWarning)
        child = context.Process(target=lambda: search("killed", 6, held).go())
        child.start()
    sender.close()  # so that its early end would be seen here
    for _ in range(job):
        receiver.recv()
    child.kill()
    child.join()


def _interrupt():
    raise KeyboardInterrupt


def test_ctrl_c_leaves_no_trial_running():
    jobs = Jobs(failing=lambda job: _interrupt() if len(jobs.started) == 2 else None)
    stopped = search("stopped", 4, jobs)
    with pytest.raises(KeyboardInterrupt):
        stopped.go()
    assert [trial.state.name for trial in stopped.study.trials] == ["COMPLETE", "FAIL", "WAITING"]
    assert len(search("stopped", 4, Jobs()).go().finished) == 4


def test_another_study_of_the_same_name_is_refused(monkeypatch):
    search("same", 1, Jobs()).go()
    for changes, sentence in (
            ({"knobs": ("compile",)}, "knobs: loader = .* there, nothing here; go on with that, or give another name"),
            ({"base": "full"}, "begun with "),
            ({"nproc": 2}, "begun with ranks = 1 there, 2 here"),
            ({"margin": 0.5}, "begun with limits: margin = 0.02 there, 0.5 here")):
        with pytest.raises(LfError, match=sentence):
            search("same", 1, Jobs(), **changes).go()
    there = {"hardware": {"cpu": "another", "cores_usable": 64, "gpus": []}}
    monkeypatch.setattr(hardware, "describe", lambda: there)
    with pytest.raises(LfError, match=r"begun with hardware: cpu = .* there, another here"):
        search("same", 1, Jobs()).go()


def test_a_study_that_minimises_is_refused():
    place = storage.folder("down")
    place.mkdir(parents=True)
    optuna.create_study(study_name="down", storage=f"sqlite:///{place / 'study.db'}", direction="minimize")
    with pytest.raises(LfError, match="the study 'down' minimises, and this one is to be maximised"):
        search("down", 1, Jobs()).go()


def test_one_process_at_a_time():
    with storage.alone(storage.folder("busy")), pytest.raises(LfError, match="another process works on the study 'bus"):
        search("busy", 1, Jobs()).go()


def test_contradictions_cost_no_job():
    """bf16 weights can't be accumulated: the recipe says so, and the study goes on."""
    found = search("contradictory", 9, Jobs(), knobs=("optimizer", "micro-batch")).go()
    refused = [trial for trial in found.study.trials if trial.user_attrs.get("ended") == "refused"]
    assert refused and all("precision.weights='bf16'" in trial.user_attrs["why"] for trial in refused)
    assert all(trial not in found.finished for trial in refused) and len(found.finished) == 7


def test_blocks_leave_out_the_warm_up_and_the_profiled_step():
    run = written(recipe("competent", steps=29), lambda job, step: 1.0)
    assert len(block_rates(run, untimed=10, steps=18)) == 9 and space.RANK["exact"] == 0
    assert block_rates(run, untimed=10, steps=18)[0] == pytest.approx(100, rel=0.01)
