"""A profiler's trace is written whole, readable by whoever reads gzip, or not at all."""

import gzip
import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lfhelpers.measure import chrome_trace


@pytest.fixture
def profiler():
    """Of one product; torch gives a trace away once."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        torch.ones(4, 4) @ torch.ones(4, 4)
    return recorded


def test_it_is_what_torch_writes_and_its_size_is_told(profiler, tmp_path):
    file = tmp_path / "traces" / "rank-0.json.gz"
    mib = chrome_trace.write(profiler, file)
    told = json.loads(gzip.decompress(file.read_bytes()))
    assert "aten::mm" in {event.get("name") for event in told["traceEvents"]}
    assert mib == file.stat().st_size / 2**20 and [path.name for path in file.parent.iterdir()] == [file.name]


def test_what_cannot_be_written_leaves_the_older_one_and_nothing_else(profiler, tmp_path, monkeypatch):
    file = tmp_path / "rank-0.json.gz"
    file.write_bytes(b"older")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chrome_trace.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        chrome_trace.write(profiler, file)
    assert file.read_bytes() == b"older" and list(tmp_path.iterdir()) == [file]
