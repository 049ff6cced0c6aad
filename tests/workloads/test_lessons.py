"""Lessons of a base: pictures as the data engines would deliver them, and dense answers that are true."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lfhelpers.recipe import recipe
from lfhelpers.workloads.vla import evaluate, lessons, sizes, teachers
from lfhelpers.workloads.vla.tabletop import dataset
from lfhelpers.workloads.vla.tabletop.scene import AREA, COLOURS, SHAPES
from lfhelpers.workloads.vla.workload import Vla

JOB = recipe("competent", "precision.mode=fp32", "workload.tune_vision=true", "workload.tune_language=true",
             "workload.text_loss=1")


@pytest.mark.parametrize("size", [56, 224])
def test_small_pictures_are_those_of_evaluation_to_two_steps_of_256(size: int) -> None:
    for index in range(4):
        episode = dataset.moment(0, index, "colour")
        there = evaluate._row(index, episode, size).images.astype(int)
        assert np.abs(lessons.pictures(episode, size) - there).mean() < 2


def test_the_tokens_tell_of_every_object_that_the_front_camera_sees() -> None:
    vision = sizes.find("small").vision
    episode = dataset.moment(0, 3, 3)
    seen = lessons.sights(episode, vision)
    assert seen.shape == (vision.tokens, len(COLOURS), 4)
    front = seen[:vision.tokens // 2]
    found = {(colour, SHAPES[int(shape)], round(float(x * AREA[0]), 3), round(float(y * AREA[1]), 3))
             for token, number in np.argwhere(front[..., 0] == 1)
             for colour, (_, x, y, shape) in [(list(COLOURS)[number], front[token, number])]}
    things = episode.scene.things
    assert found == {(thing.colour, thing.shape, round(thing.x, 3), round(thing.y, 3)) for thing in things}


def test_an_object_under_the_gripper_is_in_the_middle_of_what_the_wrist_camera_sees() -> None:
    episode = dataset.moment(0, 0, 0)
    named = episode.scene.named
    above = type(episode)(episode.scene, episode.gripper._replace(x=named.x, y=named.y))
    vision = sizes.find("tiny").vision
    wrist = lessons.sights(above, vision)[vision.tokens // 2:]
    (token, _), = np.argwhere(wrist[..., 0] == 1)
    assert token in (0, 1, 2, 3) and np.abs(wrist[..., 1:3]).max() < 1e-6


def test_a_lesson_says_where_the_named_object_stands_and_where_it_goes() -> None:
    world = dataset.moment(0, 5, "two_step")
    assert world.scene.goal is not None
    goal = world.scene.things[world.scene.goal]
    np.testing.assert_allclose(lessons.places(world)[2:], [goal.x / AREA[0], goal.y / AREA[1]], rtol=1e-6)
    one = lessons.places(dataset.moment(0, 5, "one"))
    assert (one[:2] == one[2:]).all()


def test_batches_are_the_same_from_any_number_of_workers() -> None:
    taught = lessons.Lessons(Vla(JOB), 0, ("one", "colour"), 24)
    here, there = (list(lessons.batches(taught, 3, 2, 4, workers)) for workers in (0, 2))
    assert all(torch.equal(a[name], b[name]) for a, b in zip(here, there, strict=True) for name in a)
    assert here[0]["text_tokens"].shape == (4, 24) and here[0]["images"].dtype == torch.uint8


def test_losses_are_those_that_have_a_weight_and_frozen_sight_may_come_in_ready() -> None:
    workload = Vla(JOB)
    torch.manual_seed(0)
    model, read = workload.model(), teachers.Teachers(workload.size.language.width)
    (batch,) = lessons.batches(lessons.Lessons(workload, 0, ("pair",), 24), 0, 1, 4, 0)
    draws = workload.draws(8, torch.Generator().manual_seed(0))
    everything = teachers.losses(model, read, batch, draws, {"sight": 1, "place": 1, "text": 1, "action": 1})
    assert set(everything) == set(teachers.KINDS)
    ready = {name: value for name, value in batch.items() if name != "images"}
    ready["seen"] = model.connector(model.vision(batch["images"]))
    some = teachers.losses(model, read, ready, draws, {"place": 1, "action": 0.5})
    assert set(some) == {"place", "action"}
    torch.testing.assert_close(some["place"], everything["place"])
    torch.testing.assert_close(some["action"], everything["action"])


def test_the_action_loss_is_the_workloads_own() -> None:
    workload = Vla(JOB)
    torch.manual_seed(0)
    model = workload.model()
    (batch,) = lessons.batches(lessons.Lessons(workload, 0, ("pair",), 24), 0, 1, 4, 0)
    draws = workload.draws(4, torch.Generator().manual_seed(0))
    plain = Vla(JOB.with_("workload.text_loss=0"))
    total, weight = plain.loss(_silent(model, plain), batch | {"valid": torch.ones(4)}, draws)
    read = teachers.Teachers(workload.size.language.width)
    found = teachers.losses(model, read, batch, draws, {"action": 1})["action"]
    torch.testing.assert_close(found, total / weight)


def _silent(model: torch.nn.Module, plain: Vla) -> torch.nn.Module:
    """The same weights in a model that says nothing."""
    silent = plain.model()
    silent.load_state_dict({name: value for name, value in model.state_dict().items() if "lm_head" not in name})
    return silent
