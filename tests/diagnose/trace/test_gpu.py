"""Faults planted in steps of a real GPU: work is tied to launches in this torch's traces, and the fault is named."""

import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from lfhelpers.diagnose.trace import diagnose_trace

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def recorded(path, step):
    """The report on five steps, after ordinary ones."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True,
                 schedule=schedule(wait=0, warmup=1, active=5, repeat=1),
                 on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as profiler:
        for number in range(6):
            step()
            if number == 0:  # what was queued before the first active step would have no launch in the trace
                torch.cuda.synchronize()
            profiler.step()
    return diagnose_trace(path).main


def training(width=4096, layers=8, rows=16384):
    """A step that fills the GPU: its kernels take several times as long as their launches."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, dtype=torch.bfloat16) for _ in range(layers))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")

    def step():
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step


def test_a_full_gpu_is_bound_by_computation_and_all_work_has_a_launch(tmp_path):
    step = training()
    for _ in range(40):
        step()
    report = recorded(tmp_path / "t.json.gz", step)
    assert report.confidence["launch_known_percent"] > 95 and report.found.steps.found == 5
    assert sum(report.found.parts.values()) == report.found.length
    products = next(group for group in report.groups if group.name == "matrix products")
    assert products.rate > 1 and products.unit == "TFLOP/s"
    assert report.verdict.bound == "compute", report.verdict.sentence


def test_a_late_batch_is_named(tmp_path):
    step = training()

    def late():
        with record_function("lf.data_wait"):
            time.sleep(0.15)
        step()
    assert recorded(tmp_path / "t.json.gz", late).verdict.bound == "data"


def test_tiny_kernels_are_launch_bound(tmp_path):
    x = torch.zeros(1, device="cuda")

    def tiny():
        for _ in range(3000):
            x.add_(1.0)
    report = recorded(tmp_path / "t.json.gz", tiny)
    assert report.verdict.bound == "host", report.verdict.sentence
    assert {"launch-bound", "small kernels"} <= {pattern.name for pattern in report.patterns}


def test_a_read_in_front_of_python_is_a_synchronisation(tmp_path):
    step = training()

    def reads():
        loss = step()
        loss.item()
        until = time.perf_counter() + 0.008  # of Python, less than the GPU's work: a host that is ahead hides it
        while time.perf_counter() < until:
            pass
    report = recorded(tmp_path / "t.json.gz", reads)
    assert report.verdict.bound == "synchronisation", report.verdict.sentence


def test_a_cuda_graphs_kernels_are_tied_to_their_launch(tmp_path):
    x = torch.zeros(1 << 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(300):
            x.add_(1.0)
    report = recorded(tmp_path / "t.json.gz", graph.replay)
    assert report.confidence["launch_known_percent"] > 95
    assert report.found.steps.found == 5
    assert report.percent["compute"] + report.percent["launch latency"] > 50, "between its kernels the graph is queued"
