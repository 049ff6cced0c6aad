"""Ten steps on a GPU, traced: batches travel beside computation, and the training thread never waits for the device."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lfhelpers import runs
from lfhelpers.recipe import recipe
from lfhelpers.train.hooks import Hook
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import Ranks

WAITS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cuStreamSynchronize",
         "cuCtxSynchronize", "cuEventSynchronize"}


class Trace(Hook):
    """A Chrome trace from one step's gradients to those of another ten steps later."""

    def __init__(self, path, first=6, steps=10):
        self.path, self.first, self.last = path, first, first + steps

    def gradients_ready(self, step, model):
        if step == self.first:
            torch.cuda.synchronize()  # the host is steps ahead, and what was launched before is in no trace
            self.profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self.profile.start()
        if step == self.last:
            self.profile.stop()
            self.profile.export_chrome_trace(str(self.path))


def overlap(intervals, others):
    """How long the intervals of the first list run beside one of the second, whose members don't meet each other."""
    return sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in intervals for begin, stop in others)


def interval(event):
    return event["ts"], event["ts"] + event["dur"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("loader", ["webdataset", "threads"])
def test_batches_are_copied_beside_computation_and_nobody_waits(tabletop_shards, runs_root, tmp_path, loader):
    """A step holds half a second of certain work, so the GPU is slower than loader and host, which tracing slows.

    An eager step of `small` takes a traced host longer than that, and where the GPU waits nothing runs beside a copy.
    """
    job = recipe("competent", f"data.loader={loader}", f"data.path={tabletop_shards}", "workload.size=tiny",
                 "batch.micro=64", "steps=20", "log.probe=false", "workload.use=tests.train.paced:PacedVla",
                 "workload.options.step_ms=500", "device=cuda")
    train(job, runs.create(job), Ranks(0, 1, torch.device("cuda", 0)), hooks=[Trace(tmp_path / "trace.json")])
    events = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if "dur" in event]
    marks = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("lf.")]
    assert sum(event["name"] == "lf.data_wait" for event in marks) == 10

    copies = [event for event in events if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]
              and event["args"]["bytes"] > 2**20]  # the images
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(copies) >= 9 and all("Pinned" in event["name"] for event in copies)
    streams = {event["args"]["stream"] for event in copies}
    assert len(streams) == 1
    beside = [interval(event) for event in kernels if event["args"]["stream"] not in streams]
    beside_share = overlap(map(interval, copies), beside) / sum(event["dur"] for event in copies)
    print(f"{loader}: {beside_share:.0%} of the copies' time beside kernels")
    assert beside_share > 0.5

    thread = next(event["tid"] for event in marks if event["name"] == "lf.data_wait")
    first, last = min(event["ts"] for event in marks), max(event["ts"] + event["dur"] for event in marks)
    waits = [event["name"] for event in events if event["name"] in WAITS and event["tid"] == thread
             and first <= event["ts"] <= last]
    assert waits == []
