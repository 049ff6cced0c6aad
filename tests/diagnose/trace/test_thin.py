"""Traces that are thinned to lie beside a project's records: smaller, and diagnosed as before."""

import gzip

import pytest

from lfhelpers.diagnose.trace import diagnose_trace
from lfhelpers.diagnose.trace.thin import thin
from lfhelpers.errors import LfError
from tests.diagnose.trace.synthetic import Timeline


@pytest.fixture
def whole(tmp_path):
    """Steps with a product whose shapes are known, and as much beside them as torch writes."""
    writer = Timeline(deviceProperties=[{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150 * 10**9}],
                      distributedInfo={"rank": 2, "world_size": 4})
    writer.now = 1_711_964_646_000_000.125
    writer.steps([("data", 300.0), ("backward_host", 100.0), ("exposed_communication", 80.0)] * 30)
    for event in list(writer.events):
        if event["cat"] == "kernel":
            event["args"] |= {"grid": [64, 1, 1], "block": [128, 1, 1], "queued": 0, "warps per SM": 2.0}
            shapes = {"External id": event["args"]["External id"], "Input Dims": [[64, 64], [64, 64]],
                      "Input type": ["float", "float"], "Sequence number": 7}
            writer.host("aten::mm", event["ts"], 0, **shapes)
            writer.events.append({"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1.5})
    return writer.write(tmp_path / "whole.json")


def test_a_thinned_trace_is_diagnosed_as_before(tmp_path, whole):
    size = thin(whole, tmp_path / "in" / "thin.json.gz", 10**6)
    before, after = (diagnose_trace(path).main for path in (whole, tmp_path / "in" / "thin.json.gz"))
    assert after.percent == before.percent and after.verdict == before.verdict and after.groups == before.groups
    assert (after.trace.rank, after.trace.world, after.trace.gpu) == (2, 4, "NVIDIA H200")
    assert size == (tmp_path / "in" / "thin.json.gz").stat().st_size < len(gzip.compress(whole.read_bytes(), 9))


def test_shapes_go_where_that_is_not_enough_and_then_it_is_refused(tmp_path, whole):
    size = thin(whole, tmp_path / "all.json.gz", 10**6)
    assert thin(whole, tmp_path / "small.json.gz", size - 1) < size
    before, after = (diagnose_trace(tmp_path / f"{name}.json.gz").main for name in ("all", "small"))
    assert after.percent == before.percent and len(after.trace.work.external) == 0
    with pytest.raises(LfError, match=r"whole.json has 0.0\d MB when thinned, above 0.00: record fewer steps"):
        thin(whole, tmp_path / "none.json.gz", 500)
    assert not (tmp_path / "none.json.gz").exists()
