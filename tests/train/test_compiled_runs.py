"""Whole runs that compile: what the summary says, that short batches and evaluation compile nothing again, and what
happens where nothing can be compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]
EVALUATED = '''
import torch
from tests.train.toy import Toy

class Evaluated(Toy):
    """Evaluates with its model, at a batch size that training never has."""

    def evaluate(self, model, samples, device):
        return {"mean": float(model(torch.zeros(samples, 4, device=device)).mean())}
'''
GROWING = '''
from tests.train.toy import Toy

class Growing(Toy):
    """Each batch is one row shorter than the one before it."""

    rows = 8

    def loss(self, model, batch, draws):
        self.rows -= 1
        return super().loss(model, {name: value[:self.rows] for name, value in batch.items()},
                            {name: value[:self.rows] for name, value in draws.items()})
'''


@pytest.fixture(autouse=True)
def fresh_dynamo(tmp_path, monkeypatch):
    monkeypatch.setenv("LFHELPERS_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("last", ["pad", "drop"])
def test_an_epochs_short_end_and_evaluation_compile_nothing_again(toy_run, tmp_path, last):
    """67 samples by 8: the ninth batch of an epoch has 3 (case: batches 16, 16, 7)."""
    workload = tmp_path / "evaluated.py"
    workload.write_text(EVALUATED)
    run, summary = toy_run(f"workload.use={workload}:Evaluated", "compile.scope=blocks", "evaluate.samples=5",
                           f"data.last={last}", "steps=20", "precision.mode=fp32")
    told = summary["compile"]
    assert (told["state"], told["graphs"], told["recompilations"]) == ("on", 1, [])
    assert (told["graph_breaks"], told["eager_fallbacks"]) == ([], [])
    assert told["cache"] in ("hit", "miss") and told["seconds"] > 0
    assert 3 in [row["samples"] for row in run.steps()] or last == "drop"
    assert len({row["graphs"] for row in run.steps()}) == 1, "all is compiled in the first step"
    assert summary["quality"].keys() == {"before", "after"}


def test_a_shape_that_changes_in_every_step_ends_the_run(toy_run, tmp_path):
    workload = tmp_path / "growing.py"
    workload.write_text(GROWING)
    with pytest.raises(LfError, match=r"compiled Linear.forward 2 times.*size mismatch.*data.last='drop'"):
        toy_run(f"workload.use={workload}:Growing", "compile.scope=blocks", "compile.recompile_limit=2")
    assert len(runs.find()[-1].steps()) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scope", ["blocks", "model"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_on_a_gpu_every_mode_learns_what_eager_learns(toy_job, scope, mode):
    losses = []
    for asked in ("none", scope):
        job = toy_job(f"compile.scope={asked}", f"compile.mode={mode}", "device=cuda", "steps=30",
                      "precision.mode=fp32")
        run = runs.create(job)
        summary = train(job, run, Ranks(0, 1, torch.device("cuda", 0)))
        losses.append([row["loss"] for row in run.steps()])
    assert summary["compile"]["state"] == "on" and summary["compile"]["eager_fallbacks"] == []
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_without_a_compiler_the_run_is_slower_and_says_why(toy_job, tmp_path):
    """The compiler is really gone: CXX names nothing, PATH has nothing, and Inductor's cache is empty."""
    job = toy_job("compile.scope=blocks", "steps=4", "log.probe=false", "precision.mode=fp32")
    hidden = os.environ | {"CXX": "/nonexistent", "PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "i"),
                           "OMP_NUM_THREADS": "1"}
    losses = []
    for scope, environment in (("blocks", hidden), ("none", os.environ)):
        run = runs.create(job.with_(f"compile.scope={scope}"))
        done = subprocess.run([sys.executable, "-m", "lfhelpers.train", run.path], cwd=ROOT, env=environment,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        losses.append([row["loss"] for row in run.steps()])
        told = json.loads((run.path / "summary.json").read_text())["compile"]
        if scope == "blocks":
            why = "no C++ compiler is found (install g++, or name one with CXX)"
            assert (told["state"], told["reason"]) == ("off", why)
            assert told["eager_fallbacks"] == [{"what": "Linear", "reason": why}]
            assert done.stdout.splitlines() == [f"compile: Linear runs eagerly, because {why}."]
    assert losses[0] == losses[1]
