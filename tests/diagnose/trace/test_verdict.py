"""The verdict: what binds, what its removal would give, and that the prediction comes true in a simulation."""

import pytest

from lfhelpers.diagnose.trace import compare_traces, diagnose_trace
from lfhelpers.diagnose.trace.patterns import find
from tests.diagnose.trace.simulated import run
from tests.diagnose.trace.synthetic import Timeline, Writer


def diagnosed(writer, tmp_path, name="t.json"):
    return diagnose_trace(writer.write(tmp_path / name)).main


def training(job, item=False, loading=0.0, kernels=100, length=40.0, between=0.0):
    """Python, then kernels longer than their launches; `.item()` at the end of the step, if at all."""
    if loading:
        job.load(loading)
    job.python(1500.0)
    for _ in range(kernels):
        job.kernel(length)
        job.python(between)
    if item:
        job.wait_for_gpu()


def cause(report, name):
    return next(cause for cause in report.verdict.causes if cause.name == name)


def test_an_item_each_step_is_blamed_for_the_lead_that_the_host_loses(tmp_path):
    """The GPU idles while the host is in Python, and only because the host had to wait: without, it is ahead."""
    job, slow = run(lambda job: training(job, item=True))
    _, fast = run(lambda job: training(job), steps=30)
    report = diagnosed(job, tmp_path)
    assert report.verdict.bound == "synchronisation"
    assert report.found.percent("synchronisation") < 1 < report.found.percent("forward host"), "that is what is seen"
    assert cause(report, "synchronisation").at_most == pytest.approx(slow / fast, rel=0.02)
    assert "no synchronisation could give up to 1.38x" in report.verdict.sentence


def test_a_host_that_is_late_anyway_is_not_excused_by_a_synchronisation(tmp_path):
    """Kernels of 2 us behind launches of 6: waiting for the GPU takes no time, so it costs nothing."""
    body = {"kernels": 300, "length": 2.0}
    report = diagnosed(run(lambda job: training(job, item=True, **body))[0], tmp_path)
    assert report.verdict.bound == "host"
    assert cause(report, "synchronisation").share < 1


@pytest.mark.parametrize("loading", [3000.0, 8000.0])
def test_a_slow_loader_is_blamed_for_what_it_costs(tmp_path, loading):
    """Part of the wait is hidden behind kernels that are still queued, and is paid for later."""
    job, slow = run(lambda job: training(job, loading=loading))
    _, fast = run(lambda job: training(job), steps=30)
    report = diagnosed(job, tmp_path)
    assert report.verdict.bound == "data"
    assert cause(report, "data").at_most == pytest.approx(slow / fast, rel=0.02)


def test_thousands_of_tiny_kernels_are_launch_bound_and_small(tmp_path):
    report = diagnosed(run(lambda job: training(job, kernels=1000, length=2.0, between=3.0))[0], tmp_path)
    assert {pattern.name for pattern in report.patterns} == {"launch-bound", "small kernels"}
    assert report.verdict.sentence.startswith("Host-bound: the GPU waits ")
    small = next(pattern for pattern in report.patterns if pattern.name == "small kernels")
    assert small.evidence.startswith("1,000 of 1,000 kernels a step are shorter than 5 us")
    assert small.share == pytest.approx(100, abs=1), "the kernels and the gaps before them are the whole step"


def test_a_full_gpu_is_bound_by_computation(tmp_path):
    report = diagnosed(run(lambda job: training(job, length=400.0))[0], tmp_path)
    assert report.verdict.bound == "compute" and report.patterns == ()
    assert report.verdict.sentence == "Compute-bound: the GPU computes 100 % of each step of 40.0 ms and waits 0 %."


def test_waiting_for_what_the_trace_does_not_hold_is_called_unknown_and_not_computing(tmp_path):
    """Correlations that are no numbers tie no kernel to its launch: nothing can be blamed, and the GPU is not full."""
    writer = Timeline().steps([("forward_host", 100.0)] * 70)
    for event in writer.events:
        if "correlation" in event["args"]:
            event["args"]["correlation"] = f"launch {event['args']['correlation']}"
    report = diagnosed(writer, tmp_path)
    assert report.verdict.bound == "unknown" and report.percent["unknown"] == pytest.approx(66.5, abs=0.3)
    assert report.verdict.sentence.startswith(
        "Cause unknown: the GPU waits 66 % of each step of 10.6 ms, and 66 % before work whose launch isn't in the "
        "trace; record whole steps again with torch.profiler's activities CPU and CUDA")
    again = compare_traces(tmp_path / "t.json", Timeline().steps([("data", 400.0)] * 70).write(tmp_path / "b.json"))
    assert "it was waiting for a cause that its trace doesn't hold, now data-bound" in again.verdict


@pytest.mark.parametrize(("known", "unknown", "bound"), [
    (60.0, 20.0, "data"), (20.0, 60.0, "unknown"), (1.0, 1.0, "compute")])
def test_the_larger_of_a_known_and_an_unknown_cause_names_the_verdict(tmp_path, known, unknown, bound):
    report = diagnosed(Timeline().steps([("data", known), ("unknown", unknown)] * 40), tmp_path)
    assert report.verdict.bound == bound, report.verdict.sentence


@pytest.mark.parametrize(("segment", "bound", "start"), [
    ("exposed_communication", "communication", "Communication-bound: "), ("exposed_copies", "copies", "Copy-bound: "),
    ("dependency", "dependency", "Dependency-bound: "), ("backward_host", "host", "Host-bound: ")])
def test_each_part_can_bind(tmp_path, segment, bound, start):
    report = diagnosed(Timeline().steps([(segment, 60.0)] * 70), tmp_path)
    assert report.verdict.bound == bound and report.verdict.sentence.startswith(start)


def test_two_traces_are_compared_part_by_part(tmp_path):
    for name, loading in (("a.json", 8000.0), ("b.json", 0.0)):
        run(lambda job, loading=loading: training(job, loading=loading, kernels=300))[0].write(tmp_path / name)
    both = compare_traces(tmp_path / "a.json", tmp_path / "b.json")
    rows = {row["part"]: row for row in both.rows()}
    assert rows["idle: data"]["b ms"] == 0
    assert sum(row["saved ms"] for part, row in rows.items() if part != "whole step") == \
        pytest.approx(rows["whole step"]["saved ms"], abs=0.01)
    [group] = both.group_rows()
    assert group == {"kernels": "matrix products", "a ms": 12.0, "b ms": 12.0, "saved ms": 0.0}


def test_what_bound_the_first_and_no_longer_binds_the_second_is_said(tmp_path):
    Timeline().steps([("data", 400.0)] * 100).write(tmp_path / "a.json")
    Timeline().steps([("data", 1.0)] * 100).write(tmp_path / "b.json")
    both = compare_traces(tmp_path / "a.json", tmp_path / "b.json")
    assert both.by_median == pytest.approx((450 * 100 + 50) / (51 * 100 + 50), rel=1e-3)
    assert "times as fast as a by medians" in both.verdict
    assert "no longer data-bound, now compute-bound (data: 89 and 2 % of the step)" in both.verdict
    again = compare_traces(tmp_path / "b.json", tmp_path / "a.json")
    assert "it was compute-bound, now data-bound" in again.verdict
    assert "still data-bound" in compare_traces(tmp_path / "a.json", tmp_path / "a.json").verdict


def compiled(step, events):
    writer = Writer()
    for number in range(3):
        at = number * step
        writer.step(number, at, step)
        writer.host("TorchDynamo Cache Lookup", at, 10)
        writer.gpu(at + 100, 100, at + 50)
        events(writer, number, at)
    return writer


@pytest.mark.parametrize(("events", "evidence"), [
    (lambda writer, number, at: writer.host("_compile.compile_inner (dynamo_timed)", at + 1000, 400_000),
     "compiling or loading kernels takes 800.0 ms of the steps"),
    (lambda writer, number, at: writer.host("cuModuleLoadData", at + 1000, 50_000, category="cuda_driver"),
     "compiling or loading kernels takes 100.0 ms"),
    (lambda writer, number, at: writer.host(f"Torch-Compiled Region: 2/{number}", at + 1000, 999_000),
     "3 compiled versions of one function (frame 2) run"),
    (lambda writer, number, at: None, "the host shows nothing for 2.0 s in a step that runs compiled code"),
])
def test_compilation_inside_the_steps_is_seen(tmp_path, events, evidence):
    found = diagnosed(compiled(1_000_000, events), tmp_path)
    seen = {pattern.name: pattern for pattern in find(found.found)}
    assert evidence in seen["recompiling"].evidence
    assert [pattern.name for pattern in found.patterns] == ["recompiling"], "of thin evidence, that alone"


def test_compiled_code_that_runs_is_not_recompiling(tmp_path):
    found = diagnosed(compiled(10_000, lambda writer, number, at: writer.host("Torch-Compiled Region: 0/0", at, 9000)),
                      tmp_path)
    assert "recompiling" not in {pattern.name for pattern in find(found.found)}
