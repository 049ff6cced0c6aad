"""Exchanges side by side, in a real two-rank job on the toy."""

import pytest

from lfhelpers.bench.hooks import compare
from lfhelpers.data.shards import write
from lfhelpers.errors import LfError
from tests.train.conftest import toy_members

WHOLE = 4 * 58  # the toy's numbers in fp32
TOY = {"workload.use": "tests.train.toy:Toy", "batch.micro": 8, "batch.accumulate": 2, "data.workers": 0,
       "data.augment": False, "device": "cpu", "precision.mode": "fp32"}


def test_rows_for_each_way_over_the_same_batches(tmp_path, runs_root):
    write(tmp_path / "shards", toy_members, 67, shard_mb=0.02, progress=False)
    rows = {row.name: row for row in compare(["bf16", "powersgd", "sharded"], 10, **TOY, **{
        "data.path": str(tmp_path / "shards"), "workload.dropout": 0.2, "ddp.powersgd_rank": 1})}
    assert list(rows) == ["none", "bf16", "powersgd", "sharded"], "none, the basis, is always there"
    assert {name: row.bytes_per_step for name, row in rows.items()} == {
        "none": WHOLE, "bf16": WHOLE / 2, "powersgd": 4 * (26 + 12), "sharded": WHOLE}
    assert rows["powersgd"].mean_bytes == pytest.approx((2 * WHOLE + 8 * 4 * 38) / 10), "two steps of warm-up"
    assert rows["none"].loss_over_none == 1
    assert rows["sharded"].loss_over_none == pytest.approx(1, rel=1e-5)
    assert rows["bf16"].loss_over_none == pytest.approx(1, rel=1e-2)
    assert rows["bf16"].run_over_none == pytest.approx(1, rel=1e-2) and rows["none"].run_over_none == 1
    assert all(row.step_ms > 0 for row in rows.values())


def test_the_control_is_away_by_rounding_alone(tmp_path, runs_root):
    write(tmp_path / "shards", toy_members, 67, shard_mb=0.02, progress=False)
    _, control = compare(["rounding"], 10, **TOY, **{"data.path": str(tmp_path / "shards")})
    assert control.bytes_per_step == WHOLE
    assert 0 < abs(control.run_over_none - 1) < 1e-5, "the same sums in another order"


def test_an_unknown_way_is_named():
    with pytest.raises(LfError, match=r"no way to exchange gradients is named 'power'.*powersgd"):
        compare(["power"])
