"""The planner on real steps of a tiny model: points, refusals, crashes that cost one point, and the cache."""

import functools
import os
import re
import signal

import orjson
import pytest
import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers import activations_choice as choice
from lfhelpers.levers.activations_plan import Candidate, Effort
from lfhelpers.measure import isolated
from lfhelpers.recipe import recipe
from lfhelpers.train import footprint, plan_trial, planner, trainer
from lfhelpers.train.trainer import Trainer, batch
from lfhelpers.workloads.base import find

EFFORT = Effort(budgets=(), every=(2,), shares=(), rules=False, pairs=3, steps=1)
JOB = recipe("competent", "workload.size=tiny", "batch.micro=8", "device=cpu", "precision.mode=fp32")


@pytest.fixture(scope="module", autouse=True)
def rendered():
    """Batches made once, for all trainers of this module and their processes: rendering takes longer than a step."""
    with pytest.MonkeyPatch.context() as patch:
        made = functools.cache(lambda micro, place: batch(find(JOB), JOB.with_(f"batch.micro={micro}"), place,
                                                          torch.device("cpu")))
        patch.setattr(trainer, "batch", lambda workload, job, place, device: {
            name: value.to(device) for name, value in made(job.batch.micro, place).items()})
        for micro, place in ((8, 0), (8, 1), (8, 2), (4, 0), (4, 1), (4, 2)):
            made(micro, place)
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of this module's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def found(cache):
    """All points of the tiny model."""
    return planner.survey(JOB, EFFORT)


def test_a_survey_measures_bytes_peak_and_time_of_each_plan(found):
    assert [point.name for point in found.points] == ["none", "all blocks", "keep products and attention, recompute "
                                                      "each 2."]
    none, everything, ops = found.points
    assert all(point.fits and point.ms > 0 and point.low <= point.ratio <= point.high for point in found.points)
    assert everything.saved < ops.saved < none.saved == found.profile.saved
    assert everything.peak < none.peak and everything.saved == found.profile.outside + sum(
        block.inputs for block in found.profile.blocks)
    assert choice.peak_error(found.points) < 0.1


def test_the_profile_names_the_blocks_that_save_anything(found):
    names = [found.profile.blocks[number].name for number in found.profile.saving()]
    assert names == ["5 decoder.layers.3", *(f"{6 + index} head.dit.blocks.{index}" for index in range(4))]
    assert all(block.ms > 0 for block in found.profile.blocks)
    assert found.profile.blocks[0].saved == 0, "the frozen tower saves nothing"


def test_a_plan_is_part_of_the_recipe_and_comes_from_the_cache(found, monkeypatch):
    monkeypatch.setattr(isolated, "call", lambda *_, **__: pytest.fail("it is in the cache"))
    limit = (found.points[1].peak + 1) / choice.GIB
    planned = planner.plan(JOB, limit_gib=limit, effort=EFFORT)
    assert planned.point.name == "all blocks" and planned.recipe.activations.plan == "blocks"
    assert planned.recipe.activations.blocks == tuple(found.profile.saving())
    assert planner.plan(JOB, limit_gib=1.0, goal="batch", effort=EFFORT).point.peak == min(
        point.peak for point in found.points)
    with pytest.raises(LfError, match="no plan stays within"):
        planner.plan(JOB, limit_gib=limit / 10, effort=EFFORT)


@pytest.mark.parametrize(("done", "kept"), [(False, True), (True, False)], ids=["stopped", "whole"])
def test_again_goes_on_with_a_search_that_was_stopped_and_begins_anew_otherwise(
        found, cache, monkeypatch, done, kept):
    (file,), began_with = (cache / "plans").glob("*.json"), []
    content = orjson.loads(file.read_bytes())
    file.write_bytes(orjson.dumps(content | {"done": done}))

    def measured(function, job, effort, file, terminal, timeout):
        began_with.append(file.exists())
        file.write_bytes(orjson.dumps(content))
    monkeypatch.setattr(isolated, "call", measured)
    assert planner.survey(JOB, EFFORT, again=True) == found and began_with == [kept]


def test_another_shape_has_another_file_of_the_cache(cache):
    jobs = JOB, JOB.with_("batch.micro=4"), JOB.with_("workload.dropout=0.1")
    files = {planner.cached(job, EFFORT) for job in jobs}
    assert len(files) == 3 and all(file.parent == cache / "plans" for file in files)


def test_out_of_memory_is_a_point_and_a_death_costs_one(monkeypatch, tmp_path):
    """Planted: without a plan there is no room, with selective recomputation the process is killed."""
    build = plan_trial._Side.build

    def planted(side):
        if side.job.activations.plan == "none" and side.job.batch.micro > 4:
            raise torch.OutOfMemoryError("planted")
        if side.job.activations.plan == "ops":
            os.kill(os.getpid(), signal.SIGKILL)
        return build(side)
    monkeypatch.setattr(plan_trial._Side, "build", planted)
    seen = planner.survey(JOB, EFFORT, keep=False)
    none, everything, ops = seen.points
    assert none.trouble.startswith("does not fit: needs about 0.0") and none.trouble.endswith(" GiB")
    assert everything.fits and everything.ratio > 0
    assert re.fullmatch(r"does not fit: needs at most about 0\.0\d+ GiB "
                        r"\(SIGKILL ended its process: the host ran out of memory\)", ops.trouble)
    assert choice.choose(seen.points).name == "all blocks"
    assert seen.profile.peak == none.predicted


def test_a_host_without_memory_for_the_first_measurement_is_a_sentence(monkeypatch):
    monkeypatch.setattr(plan_trial._Side, "build", lambda side: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LfError, match=r"the host ran out of memory before the step without.*smaller batch\.micro"):
        planner.survey(JOB, EFFORT, keep=False)


def test_blocks_that_cannot_be_recomputed_are_left_out(found):
    ours = Trainer(JOB)
    block = ours.workload.blocks(ours.parts.model)[7]
    block.extra = nn.BatchNorm1d(4)
    inputs = plan_trial._inputs(ours, footprint.named_blocks(ours))
    ours.close()
    assert "7 head.dit.blocks.1" not in inputs and len(inputs) == 9
    assert type(block) is type(ours.workload.blocks(ours.parts.model)[9]), "classes are put back"


def test_where_memory_goes_adds_up():
    where = isolated.call(footprint.describe, JOB.with_("log.skip=0"))
    standing = where["standing"]
    assert standing["trained weights"] < standing["optimizer states"] // 2 < 1.01 * standing["trained weights"]
    assert sum(where["blocks"].values()) == sum(where["operators"].values()) <= where["peak"]
    assert where["reserve"] is None and standing["gradients"] == 0


def test_a_candidate_is_run_as_the_recipe_says():
    assert Candidate("ops", "ops", {"plan": "ops", "recompute_every": 3}).recipe(JOB).activations.recompute_every == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_plans_are_measured_as_captured_steps_too(cache):
    """Counting what forward saves on another stream than the step's had left autograd with one that no graph takes."""
    job = recipe("full", "workload.size=tiny", "batch.micro=8")
    assert [point.trouble for point in planner.survey(job, EFFORT).points] == [""] * 3
