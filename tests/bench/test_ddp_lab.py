"""The lesson's experiments on a small model: what is counted in a step, and what becomes of a tuner's findings."""

from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lfhelpers import runs
from lfhelpers.bench import ddp_lab
from lfhelpers.bench.ddp_trials import Bench
from lfhelpers.levers.buckets_sim import MB, Gradient
from lfhelpers.levers.project import project
from lfhelpers.levers.tuner import Model
from lfhelpers.measure import isolated
from lfhelpers.measure.link import Link
from lfhelpers.recipe import recipe
from tests.train.toy import ALONE

JOB = recipe("competent", "device=cpu", "ddp.bucket_list_mb=[0.2]")
LINK = Link.of((4096, MB, 16 * MB), (0.1, 1.0, 16.0), 2, "gloo", "gloo:1GB/s")
MODEL = Model(tuple(Gradient(f"layer{place}", MB, 10.0 + place) for place in range(8)), LINK, stretch=1.5, slowing=0.1)


def experiments():
    """Both tables of a group of one rank, in a process of its own: four layers of 256 KiB and a bias each."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    data = torch.randn(8, 256)
    bench = Bench(runs.create(JOB), ALONE, 3, 0.0)
    return (ddp_lab.by_hand(bench, model, lambda model: model(data).square().mean(), rounds=1),
            ddp_lab.counted(JOB, ALONE, model, lambda model: model(data).square().mean()))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_RUNS", str(tmp_path_factory.mktemp("runs")))
        return isolated.call(experiments)


def test_a_message_a_tensor_or_a_message_a_bucket_and_the_same_gradients(tables):
    by_hand = {row["way"]: row for row in tables[0]}
    assert {name: row["messages"] for name, row in by_hand.items()} == {
        "each tensor after backward": 8, "buckets during backward": 2, "DistributedDataParallel": 4}
    assert all(row["off"] < 1e-6 and row["step_ms"] > 0 for row in by_hand.values())


def test_no_sync_saves_messages_where_it_covers_forward(tables):
    """Case 31: around backward alone it saves nothing."""
    counted = {row["covers"]: row["messages"] for row in tables[1]}
    assert counted == {"nothing": 16, "forward and backward": 4, "backward alone": 16, "forward alone": 4}
    assert all(row["buckets"] == 4 and row["off"] < 1e-6 for row in tables[1])


def test_what_a_tuner_told_is_projected_again_as_it_was():
    limits, alone, samples = (1.0, 3.0), 40.0, 16
    step = 47.0
    told = {"gradients": [asdict(gradient) for gradient in MODEL.gradients], "wire": MODEL.wire,
            "slowing": MODEL.slowing, "stretch": MODEL.stretch, "limits": list(limits),
            "projection": asdict(project(MODEL, limits, alone, samples, measured_ms=step))}
    assert ddp_lab.recalled(told, LINK.as_dict()) == MODEL
    found = ddp_lab.projections(told, LINK.as_dict())
    again = project(MODEL, limits, alone, samples, measured_ms=step)
    assert [row.gpus for row in found["chosen buckets"].rows] == [2, 8, 64, 1024]
    assert found["chosen buckets"].check == pytest.approx(again.check)
    for row, wanted in zip(found["chosen buckets"].rows, again.rows, strict=True):
        assert asdict(row) == pytest.approx(asdict(wanted))
    assert found["torch's default"].rows[0].exposed_ms == pytest.approx(MODEL.simulate(()).added_ms)
