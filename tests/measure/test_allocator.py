"""The peak of a piece of work in exact bytes, and what only a GPU's allocator can tell."""

import pickle

import pytest
import torch

from lfhelpers.errors import LfError
from lfhelpers.measure import allocator

CPU = torch.device("cpu")
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
DEVICES = [CPU, pytest.param(torch.device("cuda", 0), marks=GPU)]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_the_peak_is_the_worst_moment_and_not_the_sum(device):
    kept = torch.zeros(1000, device=device)

    def work():
        first = torch.empty(1 << 20, dtype=torch.uint8, device=device)
        del first
        second = torch.empty(1 << 21, dtype=torch.uint8, device=device)
        third = torch.empty(1 << 20, dtype=torch.uint8, device=device)
        del second, third
    work()
    assert allocator.peak(work, device) == 3 << 20
    assert kept.sum() == 0


def test_a_cpu_has_no_reserve_and_no_snapshot(tmp_path):
    assert allocator.reserve(CPU) is None
    with pytest.raises(LfError, match="a memory snapshot records a GPU's allocator"):
        allocator.snapshot(lambda: None, CPU, tmp_path / "snapshot.pickle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_tells_of_graph_pools_and_of_every_allocation(tmp_path):
    device = torch.device("cuda", 0)
    before = allocator.reserve(device)
    stream, graph, x = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.zeros(1 << 20, device=device)
    with torch.cuda.stream(stream):
        (x * 2).sum()
        with torch.cuda.graph(graph, stream=stream):
            held = x * 2
    after = allocator.reserve(device)
    assert after.graph_pools - before.graph_pools >= held.nbytes and after.reserved >= after.allocated
    assert after.fragments >= 0 and after.retries == before.retries

    path = allocator.snapshot(lambda: torch.empty(12345678, dtype=torch.uint8, device=device), device,
                              tmp_path / "snapshot.pickle")
    content = pickle.loads(path.read_bytes())
    assert any(event["action"] == "alloc" and event["size"] >= 12345678
               for trace in content["device_traces"] for event in trace)
