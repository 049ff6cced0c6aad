"""Three ways from process to process bring the same batch, and each is timed."""

import psutil
import torch

from lfhelpers.bench import transport


def test_every_way_brings_the_whole_batch():
    dtype = "uint8"
    expected = torch.from_numpy(transport.source(dtype))
    for way in (transport._queue(transport._pickling, dtype), transport._queue(transport._sharing, dtype),
                transport._ring(dtype, copied=True), transport._ring(dtype, copied=False)):
        with way as fetch:
            for _ in range(3):
                assert torch.equal(torch.as_tensor(fetch()), expected)


def test_the_rows_and_the_check_that_the_record_wants():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    rows, checks = transport.measure(rounds=2)
    assert [row.name for row in rows] == [f"{way} {dtype}" for dtype in ("float32", "uint8") for way in (
        "pickled queue", "torch queue", "ring, copied out", "ring")]
    assert all(row.value > 0 and row.n == 2 and row.unit == "ms" for row in rows)
    value = {row.name: row.value for row in rows}
    assert checks == {"ring_over_pickle": value["pickled queue float32"] / value["ring float32"]}
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert all("resource_tracker" in " ".join(child.cmdline()) for child in left), "Python's own, one a process"
