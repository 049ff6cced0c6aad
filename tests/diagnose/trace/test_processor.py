"""Traces without GPU work: the main thread's time, from a written trace and from torch's own profiler."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from lfhelpers.diagnose.trace import diagnose_trace
from tests.diagnose.trace.synthetic import LOADER, NODE, OTHER, UPDATE, Writer


def written(steps=3):
    """1,000 us a step: data 200, forward 300, backward 250, optimizer 100, exposed exchange 60, Python the rest."""
    writer = Writer(distributedInfo={"rank": 1, "world_size": 2})
    for number in range(steps):
        at = 1000 * number
        writer.step(number, at, 1000)
        writer.host(LOADER, at, 200, category="user_annotation")
        writer.host("aten::linear", at + 200, 300)
        writer.host("aten::addmm", at + 220, 200)  # inside, so counted once
        writer.host(NODE, at + 500, 250)
        writer.host("gloo:all_reduce", at + 700, 110, OTHER, "user_annotation")
        writer.host(UPDATE, at + 820, 100, category="user_annotation")
        writer.host("aten::item", at + 830, 20)  # on a CPU nobody waits for it
    return writer


def test_the_main_thread_is_divided(tmp_path):
    report = diagnose_trace(written().write(tmp_path / "t.json")).main
    assert report.percent == {"data": 20, "forward": 30, "backward": 25, "optimizer": 10, "exposed communication": 6,
                              "python": 9}
    assert report.verdict.sentence.startswith("No verdict: the trace holds 3 complete step(s) and 12 operators")
    assert report.whole["busy_percent"] is None and report.whole["idle_ms"] is None, "no GPU, so no idle one"
    assert report.whole["exposed_communication_ms"] == pytest.approx(0.18)
    assert report.whole["communication_ms"] == pytest.approx(0.33)
    assert any(note.startswith("CPU-only trace") for note in report.notes)


def test_a_wait_for_peers_inside_an_annotated_backward_is_exposed_communication(tmp_path):
    writer = Writer()
    writer.step(1, 0, 1000)
    writer.host("lf.backward", 0, 1000, category="user_annotation")
    writer.host(NODE, 100, 300)
    writer.host("gloo:all_reduce", 300, 400, OTHER, "user_annotation")
    report = diagnose_trace(writer.write(tmp_path / "t.json")).main
    assert (report.ms["backward"], report.ms["exposed communication"]) == (pytest.approx(0.7), pytest.approx(0.3))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Four recorded steps of a small model, fed by a DataLoader."""
    path = tmp_path_factory.mktemp("own") / "own.json.gz"
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    loader = iter(torch.utils.data.DataLoader(torch.randn(60, 64), batch_size=10))
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=4, repeat=1),
                 on_trace_ready=lambda done: done.export_chrome_trace(str(path)), record_shapes=True) as recorded:
        for _ in range(5):
            model(next(loader)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorded.step()
    return path


def test_a_trace_of_this_torch_is_understood(own):
    report = diagnose_trace(own).main
    assert (report.gpu, report.found.steps.found, report.found.steps.source) == (False, 4, "ProfilerStep")
    # Twelve layers take that long on any CPU, and longer on a busy one, which then has its stall in one of the parts.
    assert all(report.ms[part] > 0.1 for part in ("forward", "backward", "optimizer"))
    assert report.ms["data"] > 0.01
    assert sum(report.percent.values()) == pytest.approx(100)
    assert report.verdict.bound is not None
    assert len(report.trace.work.external) > 100, "shapes were recorded"
    assert report.trace.work.flops.max() == 2 * 10 * 64 * 64
