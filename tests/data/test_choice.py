"""`data.loader="auto"` becomes the fastest of the engines that do what the recipe asks, once, and says so."""

import re

import orjson
import pytest

from lfhelpers.data import choice, make_loader, make_plan
from lfhelpers.errors import LfError
from lfhelpers.launch.prepare import prepare
from lfhelpers.measure import hardware
from lfhelpers.recipe import recipe
from tests.data.toy_shards import ToyFields, tensors

FIND = "tests.data.choosing:find"
FOUND = {"threads": {"images_per_s": 812.4}, "dali": {"failed": "no GPU."}, "webdataset": {"images_per_s": 1560.0}}


def asking(dataset, *overrides):
    return recipe("competent", "data.loader=auto", f"data.path={dataset.folder}", "batch.micro=4", "device=cpu",
                  *overrides)


def test_the_engine_that_was_the_fastest_here_is_taken_and_remembered(dataset, runs_root, capsys, monkeypatch):
    job = asking(dataset)
    decided = choice.decide(job, 1, FIND)
    [entry] = orjson.loads((runs_root / "loaders.json").read_bytes()).values()
    rates = {name: result["images_per_s"] for name, result in entry["found"].items()}
    assert set(rates) == set(choice.candidates(job)) and all(rate > 0 for rate in rates.values())
    assert decided == job.with_(**{"data.loader": max(rates, key=rates.get)})
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith(f"loader: {decided.data.loader}, {max(rates.values()):,.0f} images/s; ")

    monkeypatch.setattr(choice, "measured", lambda *_: pytest.fail("it was measured a second time"))
    assert choice.decide(job, 1, FIND) == decided
    assert re.search(r"images/s; .* \(measured \d{4}-\d\d-\d\dT\d\d:\d\d\)$", capsys.readouterr().out)


@pytest.mark.parametrize(("overrides", "engines"), [
    ([], {"threads", "webdataset"}),
    (["data.rand_augment=2"], {"threads", "webdataset"}),
    (["data.scaled_decode=true"], {"threads"}),
    (["data.rand_augment=2", "data.aug_on=workers"], {"two_level"}),
    (["data.mixup=0.2", "data.aug_on=workers"], {"two_level"}),
])
def test_only_engines_that_do_what_the_recipe_asks_are_candidates(dataset, monkeypatch, overrides, engines):
    job = asking(dataset, *overrides)
    monkeypatch.setattr(hardware, "version", lambda package: None)
    assert set(choice.candidates(job)) == engines
    monkeypatch.setattr(hardware, "version", lambda package: "2.4.0")
    assert set(choice.candidates(job)) == engines | ({"dali"} if len(engines) > 1 else set())


def test_a_single_candidate_is_taken_without_a_measurement(dataset, runs_root, capsys):
    decided = choice.decide(asking(dataset, "data.scaled_decode=true"), 1, "nowhere:nothing")
    assert decided.data.loader == "threads" and "the only one" in capsys.readouterr().out
    assert not runs_root.exists()


def test_a_named_engine_is_left_alone(dataset, capsys):
    job = asking(dataset, "data.loader=webdataset")
    assert choice.decide(job, 1, "nowhere:nothing") is job
    assert capsys.readouterr().out == ""


def test_a_broken_engine_is_named_and_not_remembered(dataset, runs_root, monkeypatch, capsys):
    monkeypatch.setattr(choice, "measured", lambda *_: FOUND)
    assert choice.decide(asking(dataset), 1, FIND).data.loader == "webdataset"
    assert "loader: webdataset, 1,560 images/s; threads 812, dali failed (no GPU.)" in capsys.readouterr().out
    assert not (runs_root / "loaders.json").exists()


def test_no_engine_at_all_is_one_sentence(dataset, runs_root):
    with pytest.raises(LfError, match=r"no engine that works: threads: NameError: name 'torhc' is not defined") as said:
        choice.decide(asking(dataset), 1, "tests.data.choosing:broken")
    assert len(str(said.value).splitlines()) == 1
    with pytest.raises(LfError, match="can't be measured: ModuleNotFoundError: No module named 'nowhere'"):
        choice.decide(asking(dataset), 1, "nowhere:nothing")


def test_what_the_choice_depends_on_is_part_of_its_key(dataset, runs_root, monkeypatch):
    monkeypatch.setattr(choice, "measured", lambda job, world, find: {
        "threads": {"images_per_s": float(job.batch.micro)}, "webdataset": {"images_per_s": 10.0 * world}})
    wanted = [(1, "batch.micro=4", "webdataset"), (1, "batch.micro=16", "threads"), (2, "batch.micro=16", "webdataset"),
              (1, "batch.micro=4", "webdataset"), (1, "data.workers=3", "webdataset")]
    assert [choice.decide(asking(dataset, change), world, FIND).data.loader for world, change, _ in wanted] == [
        loader for _, _, loader in wanted]
    assert len(orjson.loads((runs_root / "loaders.json").read_bytes())) == 4, "the first situation came twice"


def test_the_launcher_decides_and_the_run_says_what_was_chosen(tabletop_shards, runs_root, monkeypatch):
    monkeypatch.setattr(choice, "measured", lambda *_: FOUND)
    job = recipe("competent", "data.loader=auto", f"data.path={tabletop_shards}", "workload.size=tiny")
    assert prepare(job, 1).data.loader == "webdataset"


def test_an_undecided_engine_does_not_reach_a_rank(dataset):
    job = asking(dataset)
    plan = make_plan(job, dataset, 1)
    with pytest.raises(LfError, match="decided before ranks start"):
        make_loader(job, dataset, plan, ToyFields(), tensors, 0, stop=1)
