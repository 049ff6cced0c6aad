"""Steps run again with less of one cause: what comes out is what a machine without that cause would have taken."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lfhelpers.diagnose.trace.partition import partition
from lfhelpers.diagnose.trace.pieces import CAUSES
from lfhelpers.diagnose.trace.read import read
from lfhelpers.diagnose.trace.replay import Replay
from tests.diagnose.timelines import bodies, steps

MODEL = [("python", 300.0), *[("kernel", 40.0)] * 30, ("exchange", 600.0), *[("kernel", 40.0)] * 30]
SLOW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def replayed(body, tmp_path, count=5):
    return Replay.of(partition(read(steps(body, count)[0].write(tmp_path / "t.json"))))


def without(body, *kinds):
    return [piece for piece in body if piece[0] not in kinds]


@pytest.mark.parametrize(("cause", "planted", "kind"), [
    ("data", ("load", 5000.0), "load"), ("data", ("load", 3000.0), "load"), ("synchronisation", ("wait", 0.0), "wait"),
    ("communication", ("exchange", 4000.0), "exchange")])
def test_a_step_without_a_cause_takes_what_a_machine_without_it_takes(cause, planted, kind, tmp_path):
    base = without(MODEL, "exchange")
    broken = [*base, planted, *([("wait", 0.0)] if kind == "exchange" else [])]
    found, (_, slow), (_, fast) = replayed(broken, tmp_path), steps(broken, 30), steps(without(broken, kind), 30)
    assert found.error == pytest.approx(0, abs=0.005)
    assert found.base_ms == pytest.approx(slow, rel=0.01) and slow > 1.1 * fast
    assert found.ms({cause: 0.0}) == pytest.approx(fast, rel=0.02)


def test_launch_bound_kernels_leave_the_gpus_own_time_when_nothing_is_launched_late(tmp_path):
    body = [("kernel", 2.0), ("python", 5.0)] * 200
    found = replayed(body, tmp_path)
    assert found.base_ms == pytest.approx(200 * 11.0 / 1e3, rel=0.02)
    assert found.ms({"host": 0.0}) == pytest.approx(200 * 2.0 / 1e3, rel=0.02)
    assert found.ms({"host": 0.5}) == pytest.approx(200 * 5.5 / 1e3, rel=0.02)


def test_what_hid_behind_one_cause_comes_to_light_when_it_is_gone(tmp_path):
    """Loading hides most of the host's lateness: together they win less than their product, or more than either."""
    body = [("load", 3000.0), *[("kernel", 30.0), ("python", 30.0)] * 60]
    found = replayed(body, tmp_path)
    data, host, both = (found.base_ms / found.ms(dict.fromkeys(causes, 0.0))
                        for causes in (["data"], ["host"], ["data", "host"]))
    assert both > max(data, host)
    assert both == pytest.approx(found.base_ms / (60 * 0.030), rel=0.02), "all that is left is the GPU's own work"


def test_a_loader_that_is_the_slower_side_gives_nothing_to_a_faster_step(tmp_path):
    """The next batch comes when it comes: less Python only means a longer wait for it."""
    body = [("load", 4000.0), ("python", 300.0), *[("kernel", 20.0)] * 20]
    found = replayed(body, tmp_path)
    assert found.base_ms / found.ms({"host": 0.0}) < 1.01 < found.base_ms / found.ms({"data": 0.0})


@SLOW
@given(body=bodies, keep=st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 1)), cause=st.sampled_from(CAUSES))
def test_less_of_a_cause_never_makes_a_step_longer(body, keep, cause, tmp_path):
    found = replayed(body, tmp_path)
    there = found.ms(keep)
    assert found.ms(keep | {cause: 0.0}) <= there + 1e-9 <= found.base_ms + 2e-9


def test_what_holds_no_launch_can_not_be_run_again(tmp_path):
    job, _ = steps(MODEL)
    job.events = [event for event in job.events if event["cat"] != "cuda_runtime"]
    assert Replay.of(partition(read(job.write(tmp_path / "t.json")))) is None
