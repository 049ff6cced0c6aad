"""The knobs of a recipe: what a position sets, where a knob has no effect, and what stays as it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.levers.table import Machine
from lfhelpers.measure import hardware
from lfhelpers.recipe import diff, recipe
from lfhelpers.tune import space, storage

SERVER = Machine("cuda", ranks=1)
NODE = Machine("cuda", ranks=2)
LAPTOP = Machine("cpu", ranks=1, compiler=False)
FULL = recipe("full", "data.loader=webdataset")


@pytest.fixture(autouse=True)
def dali(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "version", lambda name: "2.4.0")


def names(knobs):
    return [knob.name for knob in knobs]


def test_a_server_has_knobs_of_every_area_and_a_laptop_fewer():
    knobs = space.knobs(FULL, SERVER, cores=16)
    assert len(knobs) >= 8 and {knob.area for knob in knobs} == {"data", "batch", "compile", "memory", "optimizer"}
    assert names(space.knobs(FULL, LAPTOP, cores=2)) == [
        "loader", "workers", "prefetch", "depth", "packed frozen weights", "micro-batch", "recomputation", "optimizer"]
    assert {"buckets", "sharded optimizer"} <= set(names(space.knobs(FULL, NODE, cores=16)))


def test_positions_suit_the_machine_and_begin_with_the_base():
    workers = {cores: list(space.knobs(FULL, SERVER, only=["workers"], cores=cores)[0].positions)
               for cores in (2, 16)}
    assert workers == {2: ["its share", "1", "2"], 16: ["its share", "2", "4", "8", "16"]}
    odd = recipe("competent", "data.prefetch=3")
    assert list(space.knobs(odd, SERVER, only=["prefetch"], cores=16)[0].positions) == ["3", "1", "2", "4"]


def test_the_scale_is_a_knob_of_fp16_alone():
    assert "first loss scale" not in names(space.knobs(FULL, SERVER, cores=16))
    assert "first loss scale" in names(space.knobs(recipe("competent", "precision.mode=fp16"), SERVER, cores=16))


def test_changes_of_what_is_learnt_must_be_allowed():
    assert "compressed exchange" not in names(space.knobs(recipe(), NODE, cores=16))
    knobs = space.knobs(recipe(), NODE, "changed", cores=16)
    hooked = recipe("competent", "ddp.hook=bf16")
    assert space.equivalence(recipe(), knobs, hooked) == "changed"
    assert [space.equivalence(recipe(), knobs, recipe("competent", change)) for change in
            ("data.prefetch=4", "compile.scope=blocks")] == ["exact", "reordered"]
    assert space.equivalence(recipe(), knobs, recipe()) == "exact"


def test_a_knob_without_effect_leaves_the_job_as_it_is():
    knobs = space.knobs(recipe(), SERVER, cores=16)
    own = space.labels(knobs, recipe())
    assert space.pulled(recipe(), knobs, own) == recipe()
    other = space.pulled(recipe(), knobs, own | {"hardware decoder": "0.5", "compile mode":
                                                 "max-autotune-no-cudagraphs"})
    assert storage.key(other) == storage.key(recipe())
    decoded = space.pulled(recipe(), knobs, own | {"loader": "dali", "hardware decoder": "0.5"})
    assert diff(recipe(), decoded) == {"data.loader": ("webdataset", "dali"), "data.hw_decoder_load": (1.0, 0.5)}



@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_proposal_keeps_the_batch_or_is_refused_in_a_sentence(data):
    knobs = space.knobs(recipe(), NODE, "changed", cores=16)
    labels = {knob.name: data.draw(st.sampled_from(list(knob.positions))) for knob in knobs}
    try:
        job = space.pulled(recipe(), knobs, labels)
    except LfError as error:
        assert str(error).startswith("recipe")
        return
    assert job.batch.micro * job.batch.accumulate == 16
    again = space.pulled(recipe(), knobs, space.labels(knobs, job))
    assert storage.key(again) == storage.key(job)


def test_a_named_recipe_is_met_as_near_as_the_knobs_come():
    base = recipe("competent", "data.loader=webdataset")
    knobs = space.knobs(base, SERVER, cores=16)
    near = space.pulled(base, knobs, space.labels(knobs, FULL))
    assert set(diff(near, FULL)) == {
        "workload.train_unused", "ddp.bucket_mb", "ddp.in_place", "ddp.shard_optimizer"}  # no knobs on one rank


def test_unknown_knobs_and_an_empty_space_are_refused():
    with pytest.raises(LfError, match="no knob is named 'worker' for this recipe on this machine; did you mean 'work"):
        space.knobs(FULL, LAPTOP, only=["worker"], cores=2)
    with pytest.raises(LfError, match="no knob is named 'graph'"):
        space.knobs(FULL, LAPTOP, only=["graph"], cores=2)
