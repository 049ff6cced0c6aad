"""The bench of several ranks: a whole part of it, and the link, on two real gloo ranks at the smallest size."""

from dataclasses import replace

import pytest
import torch

from lfhelpers.bench import ddp, link
from lfhelpers.errors import LfError
from lfhelpers.levers.project import GPUS
from lfhelpers.measure import record as records
from lfhelpers.measure.link import SIZES, sizes

SHORT = ("compile.scope=none", "log.skip=0", "batch.micro=1", "device=cpu")


@pytest.mark.timeout(400)  # beyond the time of its part, so that the record says what was late
def test_the_levers_part_tells_scaling_the_tuner_and_what_it_chose(runs_root, tmp_path):
    [levers] = ddp.selected(ddp.parts(SHORT), ["levers"])
    kept = []
    record = ddp.run([replace(levers, sweep=0.0)], blocks=3, keep=lambda so_far: kept.append(set(so_far.checks)))
    assert record.settings["failed"] == {}
    assert set(record.checks) == {"tiny_mb1_over_as_found", "scaling_efficiency", "exposed_share", "tuner_over_best",
                                  "tuner_exposed_error"}
    assert kept[-1] == set(record.checks) and any(so_far < kept[-1] for so_far in kept), "kept as it was found"
    names = [(row.name, row.unit) for row in record.rows]
    assert names[:SIZES] == [(f"all-reduce of {size} bytes", "ms") for size in sizes("cpu")]
    assert names[SIZES:] == [("tiny_mb1 full, with exchange", "ms"), ("tiny_mb1 full, without exchange", "ms"),
                             ("tiny_mb1 as found", "ms"), ("tiny_mb1 full", "ms"), ("tiny_mb1 full", "x as found")]
    tuner = record.settings["levers"]["tuner"]
    ran = [plan for plan in tuner["plans"] if plan["measured [ms]"] is not None]
    assert 3 <= len(ran) == tuner["swept"] <= 5 and tuner["chosen"] in [plan["buckets"] for plan in ran]
    sent = sum(bucket["size"] for bucket in tuner["timeline"]["buckets"])
    assert sent == sum(gradient["size"] for gradient in tuner["gradients"]) > 0
    assert [row["gpus"] for row in tuner["projection"]["rows"]] == [2, *GPUS]
    exposed = record.settings["levers"]["exposed"]["tiny_mb1"]
    assert exposed["exposed_ms"] == pytest.approx(exposed["transfer_ms"] + exposed["waiting_ms"])
    assert records.load(records.write(record, tmp_path / "record.json")).checks == record.checks


def test_gradients_in_place_are_held_against_no_exchange(runs_root, monkeypatch):
    monkeypatch.setenv("NCCL_MAX_CTAS", "8")
    record = ddp.run(ddp.selected(ddp.parts(SHORT), ["in_place"]), blocks=3)
    assert record.settings["failed"] == {} and set(record.checks) == {
        "in_place_scaling_efficiency", "in_place_exposed_share"}
    assert record.settings["in_place"]["exposed"]["tiny_mb1 in place"]["collectives"]
    assert record.settings["nccl"] == {"NCCL_MAX_CTAS": "8"}, "variables that change what was measured are told"


def test_a_part_that_fails_is_a_sentence_and_not_the_end(runs_root):
    [part] = ddp.selected(ddp.parts(("workload.size=huge", *SHORT)), ["small"])
    record = ddp.run([part], blocks=3)
    assert record.rows == [] and "huge" in record.settings["failed"]["small"]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_replayed_step_over_two_gpus_tells_its_buckets_one_by_one(runs_root, sharded):
    """Each bucket is one kernel of the replay; one more sums the loss before backward.

    Where each rank updates its share, the norm's sum and the groups of new weights come on top.
    """
    [levers] = ddp.selected(ddp.parts(("workload.size=tiny", "batch.micro=4", "compile.scope=none",
                                       f"ddp.shard_optimizer={str(sharded).lower()}")), ["levers"])
    record = ddp.run([replace(levers, sweep=0.0)], blocks=3)
    assert record.settings["failed"] == {}
    found = record.settings["levers"]
    exposed = found["exposed"]["tiny_mb4"]
    assert exposed["source"] == "profiled replays"
    messages = len(exposed["collectives"]) - len(found["tuner"]["timeline"]["buckets"]) - 1
    assert messages >= 2 if sharded else messages == 0
    assert 0 <= record.checks["exposed_share"] < 1


def test_parts_are_chosen_by_name_and_a_slow_link_stands_in_its_recipe():
    found = ddp.parts(SHORT, "gloo:0.01GB/s")
    assert [part.name for part in found] == ["levers", "ddp", "in_place", "small", "slow_link"]
    assert [part.job.ddp.slow_link for part in found] == [None, None, None, None, "gloo:0.01GB/s"]
    assert [(part.job.ddp.in_place, part.job.ddp.shard_optimizer) for part in found] == [
        (True, True), (False, False), (True, False), (True, True), (False, False)]
    assert [part.name for part in ddp.selected(found, ["small"])] == ["small"]
    with pytest.raises(LfError, match="--part smal: there are levers, ddp, in_place, small, slow_link"):
        ddp.selected(found, ["smal"])


def test_a_slowed_link_is_measured_and_said_to_be_slowed(runs_root):
    record = link.run(repeats=3, slow_link="gloo:0.5GB/s,100us", device="cpu")
    assert set(record.checks) == {"slow_latency_us", "slow_bus_gb_s"}
    assert len(record.rows) == 2 * SIZES and all(row.name.startswith("slow link, ") for row in record.rows)
    assert record.checks["slow_bus_gb_s"] <= 0.5 and record.checks["slow_latency_us"] >= 100
    assert "slowed on purpose (gloo:0.5GB/s,100us)" in record.settings["text"]
