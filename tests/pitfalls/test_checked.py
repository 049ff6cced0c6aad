"""`lfhelpers check`: planted faults are found in a run's folder by name, and a clean run is clean."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from lfhelpers.levers.compile import session
from lfhelpers.pitfalls.base import Small, trained
from lfhelpers.pitfalls.checked import check, repeats
from lfhelpers.pitfalls.order import Fingerprint
from lfhelpers.recipe import recipe
from lfhelpers.runs import create, find
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.sentinel import FIRST_SHAPES, Sentinel
from lfhelpers.train.straggler import FIRST, OWN, Straggler
from tests.train.toy import ALONE

LEAKS = """
import os, threading
from pathlib import Path
from lfhelpers.bench.pitfalls_planted import Leaking
from lfhelpers.pitfalls.base import job
from lfhelpers.runs import create
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import identify

class UntilSeen(Leaking):
    def loss(self, *given):
        if list(Path(os.environ["LFHELPERS_RUNS"]).glob("*/memory-growth-rank-0.json")):
            threading.Event().wait()
        return super().loss(*given)

with job("steps=100000", use=UntilSeen) as chosen:
    train(chosen, create(chosen), identify(chosen.device))
"""


class BadSamples(Small):
    """Now and then a sample is not a number."""

    def loss(self, model, batch, draws):
        batch["x"][batch["ids"] == 7] = float("nan")
        return super().loss(model, batch, draws)


def test_a_clean_run_is_clean(command):
    with trained("log.probe=true") as run:
        assert check(run) == []
        assert command("check", run.path) == (0, "no pitfall found.\n", "")


def test_planted_faults_are_found_and_the_exit_code_says_so(command):
    with trained("log.probe=true", "log.loss_item=true", "optimizer.max_skips=9", use=BadSamples) as run:
        found = check(run)
        assert [item.pitfall for item in found] == ["black_image", "item_each_step"]
        assert "batch['x'] of sample 7 is not finite" in found[0].text
        code, out, _ = command("check", run.path)
        last = out.splitlines()[-1]
        assert code == 1 and last.startswith("item each step: the host waits for ")
        assert last.endswith("[notebook 07, slow without a word]")


@pytest.fixture
def run(runs_root):
    return create(recipe("competent", "device=cpu"))


def test_what_a_run_wrote_of_itself_is_told(run):
    run.write("summary.json", {
        "ranks": 2, "memory_growth": {"leaks": True, "text": "rank 0 holds more"},
        "late_rank": {"text": "rank 1 is late"},
        "compile": {"recompilations": [{"what": "Block.forward", "guard": "size 16"}]}})
    assert [(item.pitfall, item.section) for item in check(run)] == [
        ("loss_list", "memory"), ("recompiles", "memory"), ("late_rank", "several hosts")]


def test_a_gpu_that_is_held_down_and_a_network_that_loses_are_told(run):
    usage = {"gpu_slowed": {"heat": 40.0, "its power supply": 1.0}, "gpu_clock_mhz": 1200, "tcp_resent_percent": 3.0}
    run.write("summary.json", {"utilisation": usage})
    [heat] = check(run)
    assert "heat holds the GPU's clock down in 40 % of the run, at 1200 MHz" in heat.text
    for host in ("a", "b"):
        (run.path / "hosts").mkdir(exist_ok=True)
        run.write(f"hosts/{host}.json", {})
    assert [item.text for item in check(run)][1:] == ["3.0 % of what this host sends is lost and sent again"]


def test_most_steps_skipped_is_a_finding_and_a_scaler_that_finds_its_scale_is_none(run):
    def steps(skipped):
        (run.path / "steps.jsonl").unlink(missing_ok=True)
        run.append_steps([{"step": step, "skipped": step in skipped, "probe": False} for step in range(1, 101)])
        return [item.text for item in check(run)]
    assert steps(range(1, 9)) == []
    assert steps(range(50, 60)) == ["10 of 90 steps were skipped"]


def test_a_step_that_gets_an_earlier_steps_batch_is_told():
    assert not list(repeats(Fingerprint((1, 2, 3), (8, 8, 8), (5, 6, 7), (None,) * 3)))
    found, = repeats(Fingerprint((1, 2, 3), (8, 8, 8), (5, 6, 5), (None,) * 3))
    assert found.pitfall == "resume_repeats" and "step 3" in found.text and "step 1" in found.text


def test_a_run_that_was_killed_still_tells_of_its_leak(runs_root, tmp_path):
    job = subprocess.Popen([sys.executable, "-c", LEAKS], env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        while not list(runs_root.glob("*/memory-growth-rank-0.json")):
            assert job.poll() is None, "the sentinel has seen nothing"
            time.sleep(0.1)
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    [left] = find()
    assert left.summary == {} and [item.pitfall for item in check(left)] == ["loss_list"]


def test_ranks_that_leave_their_times_are_compared_without_a_summary(run):
    for rank, forward in enumerate((10.0, 30.0)):
        straggler = Straggler(Ranks(rank, 2, torch.device("cpu")))
        straggler.run_start(recipe("competent", "log.skip=0"), run, None)
        for step in range(1, FIRST + 2 * rank + 1):  # the second has gone on for a moment
            straggler.step({"step": step, "probe": False, "step_ms": 40.0, "ms": dict.fromkeys(OWN, 0.0) | {
                "forward": forward}})
        straggler.close()
    found = check(run)
    assert [item.pitfall for item in found] == ["late_rank"] and "rank 1 is late by 20 ms" in found[0].text
    run.write("summary.json", {"ranks": 2})
    assert check(run) == [], "the whole run's figures count where there are any"


def test_functions_compiled_again_and_shapes_that_never_come_back_are_left_when_they_are_seen(run):
    job = recipe("competent", "compile.scope=model", "compile.cache=false")
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    with session(job, torch.device("cpu")) as compilation:
        sentinel = Sentinel(ALONE, compilation=compilation)
        sentinel.run_start(job, run, None)
        for step in range(FIRST_SHAPES):
            sentinel.batch_ready(step, {"x": torch.ones(step + 2)}, {})
            if step < 2:
                compiled(torch.ones(step + 2))
            sentinel.step_end(step)
    assert [item.pitfall for item in check(run)] == ["recompiles", "new_shapes"]
    assert "1 recompilation, the last one of <lambda>" in check(run)[0].text


def test_what_the_recipe_asks_for_is_told_where_it_costs(runs_root):
    run = create(recipe("competent", "ddp.find_unused=true", "ddp.bucket_mb=0.1", "log.profile=true"))
    assert [item.pitfall for item in check(run)] == ["profiler_on"], "one rank sends nothing"
    for rank in range(2):
        run.append(f"order-rank-{rank}.jsonl", [{"step": 1, "samples": 1, "ids": "1", "pixels": None}])
    assert [item.pitfall for item in check(run)] == ["tiny_buckets", "find_unused", "profiler_on"]
