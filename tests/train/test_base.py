"""A base is made from its recipe, once, resumably; one is really made here, and what it has learnt is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.quality.captions import bounded
from lfhelpers.recipe import recipe
from lfhelpers.train.base import make as making
from lfhelpers.train.base.pool import Pool, jittered
from lfhelpers.train.base.recipe import BaseRecipe, load, meets
from lfhelpers.train.base.sweep import combinations, one
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import Ranks
from lfhelpers.workloads.vla import pretrained
from lfhelpers.workloads.vla.lessons import Lessons
from lfhelpers.workloads.vla.workload import Vla

SHORT = ("pool=64", "first=48", "episodes=2", "scenes=2", "answer_tokens=12", "stages.0.steps=3", "stages.1.steps=4",
         "stages.1.check=2", "stages.2.steps=1", "stages.0.batch=4", "stages.1.batch=4", "stages.2.batch=4",
         "stages.2.teach={place = 1.0, text = 1.0, action = 1.0}", "targets={}")
"""A base that learns nothing: a few steps of each stage, for the mechanism."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("LFHELPERS_CACHE", str(tmp_path))
    return tmp_path


def short(*overrides: str) -> BaseRecipe:
    return load("tiny", *SHORT, *overrides)


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_the_packages_recipes_are_whole_and_learn_another_task_than_they_leave_to_learn(name: str) -> None:
    base = load(name)
    assert base.size == name and base.finetune not in base.tasks
    assert [stage.name for stage in base.stages] == ["sight", "words", "actions"]
    assert base.folder.name.startswith(f"{name}-") and base.upto("words").stages == base.stages[:2]


def test_a_changed_recipe_is_another_base() -> None:
    assert len({short().digest, short("seed=1").digest, short("stages.0.lr=0.1").digest}) == 3
    assert short().digest == short().digest


@pytest.mark.parametrize(("override", "sentence"), [
    ("stages.7.lr=1", "'stages.7.lr' does not exist"), ("stages.0.speed=1", "stages.0.speed: Extra inputs"),
    ("finetune=colors", "no task 'colors'.*colour"), ("targets={fame = 1}", "no figure 'fame'"),
    ("stages.0.teach={sound = 1}", "no teacher 'sound'"), ("pool=10", "pool must hold"),
])
def test_mistakes_in_a_recipe_are_named(override: str, sentence: str) -> None:
    with pytest.raises(LfError, match=sentence):
        load("tiny", override)
    with pytest.raises(LfError, match=r"no base is named 'tinny'.*tiny"):
        load("tinny")


def test_targets_count_upwards_and_errors_downwards() -> None:
    assert meets({"success": 0.7, "action_mse": 0.01}, {"success": 0.7, "action_mse": 0.02})
    assert not meets({"success": 0.7, "action_mse": 0.03}, {"success": 0.7, "action_mse": 0.02})
    assert not meets({}, {"success": 0.1}) and meets({}, {})


def test_a_pool_that_is_started_anew_holds_the_same_lessons_and_gives_the_same_batches() -> None:
    lessons = Lessons(Vla(making._job(short())), 0, ("one",), 8)

    def pool(drawn: int) -> Pool:
        made = Pool(lessons, 48, torch.device("cpu"), 0, jitter=False)
        made.start(drawn, 96)
        return made

    def given(made: Pool) -> torch.Tensor:
        return made.batch(8, torch.Generator().manual_seed(1))["place"]

    grown = pool(40)
    before = given(grown)
    grown.feed(27)
    assert torch.equal(given(grown), given(pool(67))) and not torch.equal(given(grown), before)
    grown.look(lambda images: images.flatten(1).float().mean(1))
    batch = grown.batch(8, torch.Generator().manual_seed(1))
    assert "images" not in batch and batch["seen"].shape == (8,)
    mean = grown._kept["images"].flatten(1).float().mean(1)
    assert torch.equal(grown._kept["seen"], mean)
    grown.feed(5)
    assert torch.equal(grown._kept["seen"], grown._kept["images"].flatten(1).float().mean(1))


def test_jitter_changes_colours_by_the_lessons_number() -> None:
    images = torch.full((2, 2, 4, 4, 3), 100, dtype=torch.uint8)
    images[..., 0] = 180
    changed = jittered(images, 0, 5)
    assert torch.equal(changed[1:], jittered(images[1:], 0, 6)) and not torch.equal(changed[0], changed[1])
    assert torch.equal(changed[0, 0], changed[0, 1])  # all views of a lesson alike


def test_an_interrupted_make_goes_on_to_the_same_weights_and_a_finished_one_is_kept(cache: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(point: dict[str, Any]) -> None:
        if (point["stage"], point["step"]) == ("words", 4):
            raise Stopped

    whole = load_file(str(making.make(short(), "cpu") / pretrained.WEIGHTS))
    with pytest.raises(Stopped):
        making.make(short("seed=0"), "cpu", again=True, told=stop)
    assert [path.name for path in (cache / "base").glob(".*/*")] == [making.STATE]
    seen: list[dict[str, Any]] = []
    folder = making.make(short(), "cpu", again=True, told=seen.append)
    assert [(point["stage"], point["step"]) for point in seen] == [("words", 4), ("actions", 1)]
    rest = load_file(str(folder / pretrained.WEIGHTS))
    assert all(torch.equal(rest[name], whole[name]) for name in whole)
    card = pretrained.card(folder)
    assert [point["step"] for point in card["curve"]] == [3, 2, 4, 1]
    assert {"success", "action_mse", "question_accuracy", "bleu4", "cider", "success_blind"} <= card["figures"].keys()
    assert making.make(short(), "cpu", told=seen.append) == folder and len(seen) == 2
    assert not [path for path in (cache / "base").glob(".*") if path.is_dir()]


def test_a_compiled_base_is_the_eager_one_but_for_rounding(cache: Path) -> None:
    """Two stages, so that vision is frozen once: then it runs eagerly, over lessons by numbers of many kinds."""
    steps = ("stages.0.steps=2", "stages.1.steps=2", "stages.1.fresh=5")
    bases = [short(*steps, f"compile={scope}").upto("words") for scope in ("none", "blocks")]
    eager, compiled = (load_file(str(making.make(base, "cpu") / pretrained.WEIGHTS)) for base in bases)
    assert all(torch.allclose(compiled[name], eager[name], rtol=1e-3, atol=1e-4) for name in eager)
    assert any(not torch.equal(compiled[name], eager[name]) for name in eager), "its kernels round differently"


def test_a_sweep_makes_every_combination(cache: Path) -> None:
    assert combinations(["a=1,2", "b.c=x"]) == [("a=1", "b.c=x"), ("a=2", "b.c=x")]
    found = one("tiny", [*SHORT, "stages.0.lr=1e-4"], "cpu", "sight")
    assert found.keys() == {"loss_sight", "seconds"}
    with pytest.raises(LfError, match="write field=value,value"):
        combinations(["a"])


@pytest.fixture(scope="module")
def base() -> Path:
    """The tiny base, made by the command."""
    command = [sys.executable, "-m", "lfhelpers", "base", "make", "tiny", "--device", "cpu"]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return load("tiny").folder


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_tiny_base_learns_its_task_and_a_blind_policy_does_not(base: Path) -> None:
    card = pretrained.card(base)
    assert card["met"] and card["figures"]["success"] >= 0.6
    assert card["figures"]["success_blind"] < 0.15 and card["figures"]["success_expert"] == 1
    shares = {figure.name: figure.share for figure in bounded(card["figures"])}
    assert shares["success"] > 0.5 and shares["action_mse"] > 0.3


@pytest.mark.long
def test_a_recipe_starts_from_the_base_with_its_sight_frozen(base: Path) -> None:
    job = recipe("competent", "workload.base=tiny", "precision.mode=fp32", "evaluate.task=pair", "evaluate.episodes=24")
    workload = Vla(job)
    assert workload.base == base
    model = workload.model().eval()
    assert not any(parameter.requires_grad for parameter in model.vision.parameters())
    with torch.no_grad():
        whole = workload.judged(model, 0, torch.device("cpu"), 0, 1)
        shares = [workload.judged(model, 0, torch.device("cpu"), rank, 3) for rank in range(3)]
    assert {number: won for share in shares for number, won in share["wins"].items()} == whole["wins"]
    figures = workload.verdict(shares)
    assert figures == workload.verdict([whole])
    assert figures["success"] > 0.45 and figures["episodes"] == 24


@pytest.mark.long
def test_a_base_of_another_size_name_or_code_is_refused(base: Path, cache: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LfError, match=r"no such base, there is none in"):
        Vla(recipe("competent", "workload.base=tiny"))
    with pytest.raises(LfError, match=r"is of size 'tiny', the recipe's workload.size is 'small'"):
        pretrained.load(Vla(recipe("competent")).model(), base, "small")
    (cache / "base").mkdir()
    (cache / "base" / base.name).symlink_to(base)
    assert pretrained.find("tiny").name == base.name
    monkeypatch.setattr(pretrained, "code", lambda: "another")
    with pytest.raises(LfError, match="were made by other code"):
        pretrained.find("tiny")
    assert pretrained.find(str(base)) == base


@pytest.mark.long
@pytest.mark.usefixtures("runs_root")
def test_a_run_fine_tunes_from_the_base_through_the_real_loop(base: Path, tabletop_shards: Path) -> None:
    job = recipe("competent", "workload.base=tiny", "precision.mode=fp32", f"data.path={tabletop_shards}", "steps=2",
                 "batch.micro=8", "data.workers=0", "log.probe=false", "evaluate.task=one", "evaluate.episodes=24",
                 "optimizer.lr=1e-6", "evaluate.every=1", "device=cpu")
    run = runs.create(job)
    quality = train(run.recipe, run, Ranks(0, 1, torch.device("cpu")))["quality"]
    assert quality["before"]["success"] > 0.45 and quality["after"]["success"] > 0.45
    assert [point["step"] for point in quality["curve"]] == [1, 2]
    assert quality["curve"][1]["success"] == quality["after"]["success"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_small_is_made_and_measured_on_a_gpu(cache: Path) -> None:
    """A few steps of each stage: the mechanism in bf16, with sight computed once for frozen vision."""
    changes = [change for change in SHORT if not change.startswith("answer_tokens")]
    folder = making.make(load("small", *changes), "cuda")
    figures = pretrained.card(folder)["figures"]
    assert {"success", "bleu4", "question_accuracy", "action_mse"} <= figures.keys()
    model = Vla(recipe("competent", "workload.size=small", "precision.mode=bf16", f"workload.base={folder}")).model()
    assert model.vision.norm.weight.dtype == torch.bfloat16
