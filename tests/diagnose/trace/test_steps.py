"""Where steps begin and end: on the GPU, by whatever the trace marks them with."""

import pytest

from lfhelpers.diagnose.trace import diagnose_trace
from tests.diagnose.trace.synthetic import ALL_REDUCE, Timeline, Writer


def steps_of(writer, tmp_path):
    return diagnose_trace(writer.write(tmp_path / "t.json")).main


def test_windows_go_from_first_work_to_first_work_and_the_last_step_has_none(tmp_path):
    """The host runs 500 us ahead: its own bounds of a step are not the GPU's."""
    writer = Writer()
    for number, begin in enumerate((1000, 1700, 2800)):
        writer.step(number + 4, begin - 500, (1700, 2800, 3500)[number] - begin)
        writer.gpu(begin, 300, begin - 450)
        writer.gpu(begin + 300, 200, begin - 400)
    steps = steps_of(writer, tmp_path).found.steps
    assert steps.window_ms == [0.7, 1.1]
    assert (steps.names, steps.found) == (("ProfilerStep#4", "ProfilerStep#5"), 3)
    assert steps.host_ms == [0.7, 1.1, 0.7]


def test_a_step_that_appears_twice_and_a_stub_are_no_steps_of_their_own(tmp_path):
    """ROCm: ProfilerStep#1 on the host (9,288 us) and on the GPU (1,031 us), ProfilerStep#2 a stub of 49 us."""
    writer = Writer()
    writer.step(1, 0, 9288.291)
    writer.gpu(300, 50, 250)
    writer.gpu(9000, 50, 8900)
    writer.add("gpu_user_annotation", "ProfilerStep#1", 300, 1031.368, 7, stream=7, device=0)
    writer.step(2, 9300, 49.073)
    report = steps_of(writer, tmp_path)
    assert (report.found.steps.found, report.found.steps.host_ms) == (1, [9.288291])
    assert report.step_ms["mean"] == pytest.approx(9.288291)
    assert "ProfilerStep#2 (49 us) is left out as incomplete: a stub at the end of the recording" in report.notes


def test_a_step_whose_work_was_not_recorded_is_left_out(tmp_path):
    writer = Writer()
    for number in range(4):
        writer.step(number, 1000 * number, 1000)
        if number != 3:
            writer.gpu(1000 * number + 100, 800, 1000 * number + 50)
    report = steps_of(writer, tmp_path)
    assert report.found.steps.window_ms == [1, 1]
    assert "ProfilerStep#3 (1000 us) is left out as incomplete: none of the recorded GPU work was launched in it" in \
        report.notes


@pytest.mark.parametrize("name", ["Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"])
def test_without_marks_the_optimizers_calls_are_taken(tmp_path, name):
    writer = Writer()
    for number in range(5):
        writer.gpu(1000 * number + 100, 700, 1000 * number + 50)
        writer.host(name, 1000 * number + 850, 100, category="user_annotation")
    steps = steps_of(writer, tmp_path).found.steps
    assert (steps.source, steps.found, steps.window_ms) == ("optimizer", 4, [1, 1, 1])


def test_failing_these_a_period_in_the_kernels_names_is_found(tmp_path):
    writer = Writer()
    for number in range(6):
        for place, name in enumerate("abcb"):
            writer.gpu(1000 * number + 200 * place, 150, 1000 * number + 200 * place - 5, name=f"kernel_{name}")
    report = steps_of(writer, tmp_path)
    assert (report.found.steps.source, report.found.steps.window_ms) == ("kernels", [1] * 5)
    assert any(note.startswith("no step is marked: steps are told by the kernels' names") for note in report.notes)


def test_else_the_whole_span_is_one_window_and_said_to_be(tmp_path):
    writer = Writer()
    for place, name in enumerate("abcdefg"):
        writer.gpu(100 * place, 60, 100 * place - 5, name=name)
    report = steps_of(writer, tmp_path)
    assert (report.found.steps.source, report.found.steps.found, report.step_ms["mean"]) == ("whole span", 0, 0.66)
    assert any("none can be told: the whole span" in note for note in report.notes)


def test_marks_of_the_gpu_alone_are_better_than_none(tmp_path):
    writer = Writer()
    for number in range(3):
        writer.add("gpu_user_annotation", f"ProfilerStep#{number}", 1000 * number, 900, 7, stream=7, device=0)
        writer.gpu(1000 * number, 900)
    report = steps_of(writer, tmp_path)
    assert report.found.steps.window_ms == [1, 1]
    assert report.found.percent("unknown") == pytest.approx(10)
    assert "the trace holds no launches: steps are told by the host's times alone" in report.notes


@pytest.mark.parametrize(("steps", "each", "thin"), [
    (2, 300, "the trace holds 2 complete step(s) and 602 kernels, and a verdict needs 3 and 200"),
    (4, 20, "the trace holds 4 complete step(s) and 84 kernels"), (4, 60, None)])
def test_too_little_evidence_gives_no_verdict(tmp_path, steps, each, thin):
    report = steps_of(Timeline().steps([("data", 30.0)] * each, steps), tmp_path)
    if thin is None:
        assert report.verdict.bound == "data" and report.verdict.sentence.startswith("Data-bound: the GPU waits ")
    else:
        assert report.verdict.bound is None and report.verdict.sentence.startswith(f"No verdict: {thin}")
        assert report.patterns == ()
    assert sum(report.percent.values()) == pytest.approx(100)


def test_of_several_gpus_the_busiest_is_reported(tmp_path):
    writer = Timeline().steps([("forward_host", 100.0)])
    before = steps_of(writer, tmp_path).percent
    writer.gpu(1000, 5000, 990, device=1)
    assert steps_of(writer, tmp_path).percent == before


COMMUNICATION = ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", ALL_REDUCE,
                 "ncclDevKernel_Generic(ncclDevKernelArgs)", "nccldevkernel_allgather_ring_ll",
                 "ncclKernel_SendRecv(ncclDevKernelArgs)")


def test_communication_goes_by_many_names(tmp_path):
    """500 us of exchanges and 100 us of a product; what the host calls nccl:... only launches one."""
    writer = Writer()
    for place, name in enumerate((*COMMUNICATION, "sm80_gemm")):
        writer.gpu(100 * place, 100, 100 * place - 5, name=name)
    for name in ("nccl:all_reduce", "gloo:all_reduce"):
        writer.host(name, 0, 100, category="user_annotation")
    whole = steps_of(writer, tmp_path).whole
    assert (whole["communication_ms"], whole["compute_ms"]) == (0.5, 0.1)


def test_a_job_of_several_ranks_without_known_exchanges_is_said_to_be_so(tmp_path):
    writer = Timeline(distributedInfo={"rank": 0, "world_size": 2}).steps([("data", 100.0)])
    notes = steps_of(writer, tmp_path).notes
    assert any(note.startswith("the job has 2 ranks, but no communication kernels were recognised") for note in notes)
