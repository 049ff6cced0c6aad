"""The meter reads the truth: planted costs against a clock that tests set, and the stage that holds the others up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lfhelpers.data import meter as meter_module
from lfhelpers.data.meter import Meter, metered

STEP = 20.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def simulated(cost: float, room: int = 3, steps: int = 400) -> Meter:
    """A stage that takes `cost` a batch before a queue with `room`, and a consumer that takes STEP."""
    clock = Clock()
    meter = Meter(clock)
    ready: list[float] = []  # when each batch is there
    taken: list[float] = []
    for number in range(steps):
        begun = max(ready[-1] if ready else 100.0, taken[number - room] if number >= room else 100.0)
        meter.spent("decode", "blocked_out", begun - (ready[-1] if ready else 100.0))
        meter.spent("decode", "busy", cost)
        ready.append(begun + cost)
        waited = max(ready[-1] - clock.now, 0.0)
        clock.now += waited
        taken.append(clock.now)
        meter.got(waited, {"ready": sum(at <= clock.now for at in ready) - number})
        clock.now += STEP
    return meter


@pytest.mark.parametrize(("cost", "starved"), [(0.5, 0), (1.0, 0), (2.0, 50), (4.0, 75)])
def test_starvation_is_what_was_planted(cost: float, starved: float) -> None:
    meter = simulated(cost * STEP)
    assert meter.starved() == pytest.approx(starved, abs=0.5)
    assert meter.bottleneck() == ("decode" if starved else "consumer")
    assert meter.stats()["wait_ms"]["p50"] == pytest.approx(1e3 * max(cost - 1, 0) * STEP)


def test_a_stage_that_waits_for_room_says_so() -> None:
    fast, slow = (simulated(cost * STEP).stats()["stages"]["decode"] for cost in (0.25, 2.0))
    assert fast["blocked_out_percent"] == pytest.approx(75, abs=1) and fast["busy_percent"] == pytest.approx(25, abs=1)
    assert slow["blocked_out_percent"] == 0 and slow["busy_s"] == 400 * 2 * STEP


def test_the_stage_with_the_most_work_for_its_lanes_is_the_bottleneck() -> None:
    clock = Clock()
    one, four = Meter(clock, augment=1), Meter(clock, augment=4)
    for meter in (one, four):
        meter.spent("decode", "busy", 10)
        meter.spent("augment", "busy", 30)
        for _ in range(3):
            meter.got(5.0, {})
            clock.now += 6.0
    assert (one.bottleneck(), four.bottleneck()) == ("augment", "decode")


def test_the_first_wait_is_the_start_and_not_starvation() -> None:
    clock = Clock()
    meter = Meter(clock)
    assert (meter.starved(), meter.bottleneck(), meter.stats()["batches"], meter.series()) == (
        0.0, "consumer", 0, {"at": [], "wait_ms": []})
    meter.got(50.0, {"ready": 0})
    clock.now += 10.0
    meter.got(4.0, {"ready": 2})
    assert meter.starved() == 40.0
    assert meter.series() == {"at": [0.0, 10.0], "wait_ms": [50e3, 4e3], "ready": [0.0, 2.0]}
    assert meter.stats()["depth"] == {"ready": {"p5": pytest.approx(0.1), "p50": 1.0}}


def test_a_block_is_timed_by_the_clock() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter.timed("decode", "blocked_in"):
        clock.now += 3.0
    with meter.timed("decode", "busy"):
        clock.now += 1.0
    assert meter.stats()["stages"]["decode"] == {"busy_percent": 25.0, "blocked_in_percent": 75.0,
                                                 "blocked_out_percent": 0.0, "busy_s": 1.0}


def test_a_long_run_keeps_its_sums_and_its_latest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "KEPT", 5)
    meter = simulated(2 * STEP)
    assert len(meter.series()["at"]) == 5 and meter.stats()["batches"] == 400
    assert meter.starved() == pytest.approx(50, abs=0.5)


def test_any_loader_can_be_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(meter_module.time, "perf_counter", clock)
    meter = Meter(clock)

    def loader() -> Iterator[str]:
        for batch in "abcd":
            clock.now += 3.0
            yield batch

    taken = []
    for batch in metered(loader(), meter):
        taken.append(batch)
        clock.now += 1.0
    assert taken == list("abcd") and meter.starved() == 75.0
    assert meter.series() == {"at": [0.0, 4.0, 8.0, 12.0], "wait_ms": [3e3] * 4}
