"""The probe counts exactly: operators by phase, and values that the host reads back."""

from itertools import accumulate, chain

import pytest
import torch

from lfhelpers.measure import probe
from lfhelpers.measure.clock import StepClock
from lfhelpers.measure.probe import Probe, tiny_operator_us

CPU = torch.device("cpu")


def probed(forward_adds, reads):
    clock = StepClock(CPU)
    weight = torch.ones(3, requires_grad=True)
    with Probe(CPU, step=7) as probe:
        with clock.phase("forward"):
            value = weight
            for _ in range(forward_adds):
                value = value + 1.0
            loss = value.sum()
        with clock.phase("backward"):
            loss.backward()
        with clock.phase("optimizer"), torch.no_grad():
            for _ in range(reads):
                weight.sum().item()
    return probe.result()


def test_operators_are_counted_by_phase():
    few, many = probed(10, 0), probed(110, 0)
    assert many["operators"]["forward"] - few["operators"]["forward"] == 100
    assert few["step"] == 7 and few["kernels"] is None
    assert sum(few["operators"][phase] for phase in ("forward", "backward", "optimizer")) <= few["operators"]["total"]


def test_values_read_by_the_host_are_counted():
    assert (probed(1, 0)["host_reads"], probed(1, 25)["host_reads"]) == (0, 25)


def test_the_most_costly_operators_come_first():
    top = probed(50, 0)["top"]
    assert len(top) <= 10 and [row["self_ms"] for row in top] == sorted((row["self_ms"] for row in top), reverse=True)
    assert next(row for row in top if row["name"] == "aten::add")["calls"] == 50


def test_a_tiny_operator_costs_something():
    assert 0 < tiny_operator_us(CPU, calls=200) < 1e5


def test_a_core_that_is_taken_away_meanwhile_does_not_count(monkeypatch):
    rounds = [1e-3] * 12 + [0.5] * 9  # of 100 calls each
    ticks = iter(accumulate(chain.from_iterable((0.0, took) for took in rounds)))
    monkeypatch.setattr(probe.time, "perf_counter", lambda: next(ticks))
    assert tiny_operator_us(CPU) == pytest.approx(10.0)
