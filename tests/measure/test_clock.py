"""The clock's phases follow each other without gaps, so they sum to the step, whatever happens between them."""

import itertools
import time

import pytest
import torch

from lfhelpers.measure.clock import PHASES, StepClock

CPU = torch.device("cpu")


@pytest.fixture
def ticks(monkeypatch):
    """A clock that advances by one second at each look."""
    counter = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(counter)))


def test_a_step_is_the_sum_of_its_phases(ticks):
    clock = StepClock(CPU)
    clock.begin()
    for name in ("data_wait", "host_to_device", "forward", "backward", "forward", "backward", "optimizer"):
        with clock.phase(name):
            pass
    clock.end(step=1)
    row, = clock.ready()
    assert row["step"] == 1
    assert set(row["ms"]) == set(PHASES)
    assert row["step_ms"] == sum(row["ms"].values())
    assert row["ms"]["forward"] == row["ms"]["backward"] > row["ms"]["optimizer"] > 0


def test_steps_follow_each_other_without_a_gap(ticks):
    """What happens between end and begin (logging, checkpoints) is the next step's, under its first phase."""
    clock = StepClock(CPU)
    total, began = 0.0, time.perf_counter()
    for step in range(5):
        clock.begin()
        time.perf_counter()
        with clock.phase("forward"):
            pass
        clock.end(step=step)
        total += clock.ready()[0]["step_ms"]
    assert total <= (time.perf_counter() - began) * 1e3
    assert total >= (time.perf_counter() - began - 5) * 1e3


def test_host_time_leaves_the_data_wait_out(ticks):
    clock = StepClock(CPU)
    clock.begin()
    with clock.phase("data_wait"):
        for _ in range(50):
            time.perf_counter()
    clock.end(step=0)
    row, = clock.ready()
    assert row["ms"]["data_wait"] >= 50_000 > row["host_ms"]


def test_a_pause_is_nobodys_time(ticks):
    clock = StepClock(CPU)
    for _ in range(2):
        clock.begin()
        with clock.phase("data_wait"):
            pass
        clock.end()
        for _ in range(1000):
            time.perf_counter()
        clock.pause()
    assert all(row["step_ms"] < 100_000 for row in clock.ready())


def test_values_come_back_with_their_step():
    clock = StepClock(CPU)
    for step in range(3):
        clock.begin()
        clock.end(torch.tensor([float(step), 2.0]), step=step)
    assert [row["values"] for row in clock.ready()] == [[0.0, 2.0], [1.0, 2.0], [2.0, 2.0]]
    assert clock.ready() == []


def test_phases_outside_a_step_do_nothing():
    clock = StepClock(CPU)
    with clock.phase("forward"):
        pass
    assert clock.ready() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_nothing_is_read_before_the_device_is_done():
    device = torch.device("cuda")
    clock = StepClock(device)
    matrix = torch.randn(4096, 4096, device=device)

    def step(products):
        nonlocal matrix
        clock.begin()
        with clock.phase("forward"):
            for _ in range(products):
                matrix = matrix @ matrix
                matrix /= matrix.norm()
        clock.end(matrix.sum().view(1), products=products)

    step(1)  # the first step loads kernels and makes the page-locked buffer
    clock.ready(wait=True)
    step(1000)
    assert clock.ready() == []
    row, = clock.ready(wait=True)
    assert row["products"] == 1000 and row["ms"]["forward"] > 0.9 * row["step_ms"] > 0
