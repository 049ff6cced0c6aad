"""Idle time by cause on traces whose truth is known, because they were written for it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lfhelpers.diagnose.trace.partition import CAUSES, PARTS, partition
from lfhelpers.diagnose.trace.read import read
from tests.diagnose.trace.synthetic import (
    ALL_REDUCE,
    COMPUTE_STREAM,
    ENGINE,
    EXCHANGE_STREAM,
    LOADER,
    MAIN,
    NODE,
    OTHER,
    Timeline,
    Writer,
    percent,
)

SEGMENTS = [part.replace(" ", "_") for part in PARTS if part != "compute"]


def divided(writer, tmp_path, name="trace.json"):
    return partition(read(writer.write(tmp_path / name)))


def shares(found):
    return {part: found.percent(part) for part in PARTS}


@pytest.mark.parametrize("cause", SEGMENTS)
def test_a_single_cause_is_named(cause, tmp_path):
    found = divided(timeline := Timeline().steps([(cause, 400.0), (cause, 100.0)]), tmp_path)
    for part, share in percent(timeline.truth).items():
        assert found.percent(part) == pytest.approx(share, abs=0.1), part
    assert sum(found.parts.values()) == found.length
    assert found.windows == 3


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(SEGMENTS), st.floats(20, 2000)), min_size=1, max_size=25))
def test_any_mixture_of_causes_is_divided_within_two_points(tmp_path, segments):
    timeline = Timeline().steps(segments)
    found = divided(timeline, tmp_path)
    truth = percent(timeline.truth)
    assert all(abs(found.percent(part) - truth.get(part, 0)) < 2 for part in PARTS), (truth, shares(found))
    assert sum(found.parts.values()) == found.length


def two_steps(write, length=1000.0, steps=2):
    """Steps of `length` us written by `write(writer, start)`, each begun by a kernel of 100 us that it launched."""
    writer = Writer()
    for number in range(steps):
        start = 10_000 + number * length
        writer.step(number + 1, start - 50, length)
        writer.gpu(start, 100, start - 10)
        write(writer, start)
    return writer


def test_a_gap_is_split_by_what_the_host_did_one_after_the_other(tmp_path):
    def write(writer, start):
        writer.host(LOADER, start + 50, 350, category="user_annotation")  # 300 of it while the GPU was idle
        writer.host("aten::embedding", start + 400, 100)
        writer.gpu(start + 520, 480, start + 500)
    assert divided(two_steps(write), tmp_path).parts == dict.fromkeys(PARTS, 0) | {
        "compute": 580_000, "data": 300_000, "forward host": 100_000, "launch latency": 20_000}


def test_a_short_gap_of_queued_work_is_the_devices_own(tmp_path):
    def write(writer, start):
        writer.gpu(start + 102, 100, start + 1)
        writer.gpu(start + 302, 698, start + 2, stream=EXCHANGE_STREAM)
    parts = divided(two_steps(write), tmp_path).parts
    assert (parts["launch latency"], parts["dependency"]) == (2_000, 100_000)


def test_the_autograd_threads_launches_are_explained_by_the_main_thread_while_it_does_nothing(tmp_path):
    def write(writer, start):
        writer.host(LOADER, start, 600, category="user_annotation")
        writer.host(NODE, start + 700, 100, ENGINE)
        writer.gpu(start + 800, 200, start + 800, ENGINE)
    parts = divided(two_steps(write), tmp_path).parts
    assert (parts["data"], parts["forward host"], parts["backward host"]) == (500_000, 100_000, 100_000)


def test_a_thread_that_launches_nothing_explains_nothing(tmp_path):
    def write(writer, start):
        writer.host("cudaEventSynchronize", start, 1000, OTHER, "cuda_runtime")
        writer.host(LOADER, start, 900, OTHER, "user_annotation")
        writer.gpu(start + 900, 100, start + 900, MAIN)
    assert divided(two_steps(write), tmp_path).parts["forward host"] == 800_000


def test_a_synchronisation_inside_the_optimizer_is_a_synchronisation(tmp_path):
    def write(writer, start):
        writer.host("Optimizer.step#AdamW.step", start + 100, 800, category="user_annotation")
        writer.host("aten::item", start + 300, 200)
        writer.gpu(start + 900, 100, start + 900)
    parts = divided(two_steps(write), tmp_path).parts
    assert (parts["optimizer host"], parts["synchronisation"]) == (600_000, 200_000)


def test_a_cuda_graphs_kernels_share_one_launch_and_only_the_first_is_late(tmp_path):
    def write(writer, start):
        launch = writer.gpu(start + 300, 100, start + 250, call="cudaGraphLaunch")
        for place in range(5):
            writer.gpu(start + 410 + 110 * place, 100, correlation=launch)
    parts = divided(two_steps(write), tmp_path).parts
    assert parts["dependency"] == 50_000, "10 us before each of the other five"
    assert parts["launch latency"] == 60_000, "50 of the graph, 10 of the next step's first kernel"
    assert (parts["forward host"], parts["unknown"]) == (190_000, 0), "100-250, and 950-990"


def test_work_without_a_launch_stays_work(tmp_path):
    def write(writer, start):
        writer.gpu(start + 500, 500)
    found = divided(two_steps(write), tmp_path)
    assert (found.parts["compute"], found.parts["unknown"]) == (600_000, 400_000)
    assert found.launched.known.mean() == 0.5


def test_work_that_begins_before_its_launch_is_explained_all_the_same(tmp_path):
    """The clocks of host and GPU may disagree by microseconds."""
    def write(writer, start):
        writer.host(LOADER, start + 100, 400, category="user_annotation")
        writer.gpu(start + 500, 500, start + 503)
    parts = divided(two_steps(write), tmp_path).parts
    assert (parts["data"], parts["launch latency"]) == (400_000, 0)


def test_two_streams_count_once_and_exchanges_as_far_as_nothing_computes(tmp_path):
    """Case: a sum of 1,150 us whose union is 800 us, with an exchange of 450 us of which 100 us are exposed."""
    writer = Writer()
    writer.step(1, 0, 1000)
    for start, length, stream, name in ((100, 400, 7, "gemm"), (500, 300, 7, "gemm"), (300, 300, 20, ALL_REDUCE),
                                        (750, 150, 20, ALL_REDUCE)):
        writer.gpu(start, length, name=name, stream=stream)
    found = divided(writer, tmp_path)
    assert found.length == 1_000_000
    assert (found.percent("compute"), found.percent("exposed communication")) == (70, 10)
    assert sum(found.percent(cause) for cause in CAUSES) == pytest.approx(20)
    assert found.percent("unknown") == pytest.approx(20), "no launch is in the trace, so nothing can be blamed"


def test_kernels_that_overlap_on_one_stream_are_both_kept(tmp_path):
    """Programmatic launches overlap: 3.000 for 3.776 and 5.000 for 2.000 are 4.000 us."""
    writer = Writer()
    writer.gpu(3, 3.776, 1, stream=COMPUTE_STREAM)
    writer.gpu(5, 2, 2, stream=COMPUTE_STREAM)
    found = divided(writer, tmp_path)
    assert (found.parts["compute"], len(found.rows)) == (4_000, 2)
