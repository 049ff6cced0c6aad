"""`lfhelpers bench own`: which recipes meet, what is made of their runs, and the plain loop itself."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from lfhelpers.bench import own, own_loop
from lfhelpers.errors import LfError
from lfhelpers.measure import record as records
from lfhelpers.recipe import diff


def test_both_sides_have_one_workload_size_batch_and_data():
    base, tuned = own._bases("language", own.Options(steps=20, overrides=("device=cpu",)))
    apart = set(diff(base, tuned))
    assert {"data.loader", "optimizer.fused", "compile.scope", "log.loss_item"} <= apart
    assert not {"workload.use", "workload.size", "batch.micro", "data.augment", "precision.mode",
                "optimizer.schedule"} & apart
    assert not tuned.frozen.ahead and not tuned.frozen.packed, "levers that a workload of one's own can't pull"


def test_gains_are_ratios_of_medians_with_what_a_side_differs_from_itself(monkeypatch):
    rates, plain = itertools.cycle([200.0, 220.0, 210.0]), itertools.cycle([100.0, 104.0, 100.0])
    monkeypatch.setattr(own, "_full", lambda job: (next(rates), 0.5))
    monkeypatch.setattr(own, "_plain", lambda job: (next(plain), 0.6))
    kept = []
    found = own.run(own.Options(parts=("image",), rounds=3), kept.append)
    assert found.checks == {"image_gain": pytest.approx(2.1)} and len(kept) == 3
    row = found.row("image, full over plain")
    assert row.low < 2.1 < row.high and row.n == 3 and found.aa_spread > 0.03
    assert found.row("image, plain", "loss at the end").value == 0.6
    assert records.reference_path("own_workloads", "h200x1").name == "own_workloads.json"


def test_what_watching_costs_is_told_from_paired_blocks(monkeypatch):
    times = {"bare": [1.0, 1.01, 1.0, 0.99], "watched": [1.005, 1.015, 1.006, 0.994]}
    run = SimpleNamespace(read=lambda name: times)
    monkeypatch.setattr(own, "prepare", lambda job, nproc: job)
    monkeypatch.setattr(own, "launch", lambda *args, **more: run)
    found = own.run(own.Options(parts=("watch",)))
    assert found.checks["watch_cost_share"] == pytest.approx(0.005, abs=5e-4)


def test_a_part_that_is_none_is_refused():
    with pytest.raises(LfError, match="--part wings: take image, language, watch"):
        own.run(own.Options(parts=("wings",)))


def test_the_plain_loop_trains_bare_and_watched_alike(toy, monkeypatch):
    monkeypatch.setattr(own_loop, "BLOCK", 3)
    monkeypatch.setattr(own_loop, "WORKERS", 0)
    plain = own_loop.Plain(toy, torch.device("cpu"))
    losses = plain.train(plain.loader(60))
    assert sum(losses[-15:]) < sum(losses[:15])
    found = own_loop.timed(plain, 2, 8)
    assert found["samples_per_s"] == pytest.approx(8e3 / found["step_ms"]) and found["loss"] < max(losses)
    blocks = own_loop.watched(plain, 1, 4)
    assert {side: len(times) for side, times in blocks.items()} == {"bare": 4, "watched": 4}
