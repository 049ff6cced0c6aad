"""Tasks by difficulty: each is a function of (seed, index), can be done, and needs what its name says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.workloads.vla import evaluate
from lfhelpers.workloads.vla.tabletop import dataset, tasks, text
from lfhelpers.workloads.vla.tabletop.scene import Scene, scene
from lfhelpers.workloads.vla.tabletop.simulator import CHUNKS, GRASP, Simulator, expert

names = st.sampled_from(list(tasks.TASKS))
indices = st.integers(0, 10**9)


def played(world: Scene, followed: Scene) -> bool:
    """Whether doing as the expert says for `followed` succeeds in `world`."""
    episode = Simulator(world)
    for _ in range(CHUNKS):
        shown = replace(episode.scene, target=followed.target, goal=followed.goal)
        episode.run(expert(shown, episode.state))
    return episode.success


@given(names, indices)
def test_a_scene_is_the_same_each_time_and_has_as_many_objects_as_its_task_says(name: str, index: int) -> None:
    task = tasks.find(name)
    assert task.scene(0, index) == task.scene(0, index)
    assert task.objects[0] <= len(task.scene(0, index).things) <= task.objects[1]


@given(names, indices)
def test_the_expert_does_what_is_asked(name: str, index: int) -> None:
    world = tasks.drawn(name, 1, index)
    assert played(world, world)


@given(indices)
def test_in_shape_neither_word_alone_says_which_is_meant(index: int) -> None:
    world = tasks.drawn("shape", 0, index)
    named = world.named
    assert [thing.name for thing in world.things].count(named.name) == 1
    assert sum(thing.colour == named.colour for thing in world.things) == 3
    assert sum(thing.shape == named.shape for thing in world.things) >= 2


@given(indices)
def test_in_two_steps_the_instruction_names_both_and_the_second_decides(index: int) -> None:
    world = tasks.drawn("two_step", 0, index)
    assert world.goal is not None and world.goal != world.target
    first, second = world.named.name, world.things[world.goal].name
    said = text.instruction(world)
    assert said.index(first) < said.index(second)
    assert text.decode(text.encode(said, 16)) == said
    others = [number for number in range(len(world.things)) if number not in (world.target, world.goal)]
    assert not any(played(world, replace(world, goal=other)) for other in others)


@given(indices)
def test_across_is_the_same_table_for_an_arm_that_stands_on_its_other_side(index: int) -> None:
    here, across = tasks.drawn("colour", 0, index), tasks.drawn("across", 0, index)
    assert replace(across, turned=False) == here
    first, second = Simulator(here), Simulator(across)
    assert second.state[:3].tolist() == (first.state[:3] * (-1, -1, 1)).tolist()
    assert expert(across, second.state)[:, :2] == pytest.approx(-expert(here, first.state)[:, :2])
    assert expert(across, second.state)[:, 2:].tolist() == expert(here, first.state)[:, 2:].tolist()


def test_who_moves_as_before_is_not_right_in_across() -> None:
    worlds = [tasks.drawn("across", 1, index) for index in range(50)]
    won = 0
    for world in worlds:
        episode = Simulator(world)
        for _ in range(CHUNKS):
            episode.run(expert(replace(episode.scene, turned=False), episode.state))
        won += episode.success
    assert won <= 2


def test_what_was_put_down_beside_the_goal_is_no_success() -> None:
    world = tasks.drawn("two_step", 0, 3)
    assert world.goal is not None
    goal = world.things[world.goal]

    def put(aside: float) -> bool:
        things = list(world.things)
        things[world.target] = replace(world.named, x=goal.x + aside, y=goal.y)
        return Simulator(replace(world, things=tuple(things))).success

    assert put(0.0) and put(0.9 * GRASP) and not put(1.1 * GRASP)


def test_a_number_of_distractors_is_the_scene_that_it_always_was() -> None:
    assert tasks.drawn(2, 0, 7) == scene(0, 7, 2)
    assert dataset.sample(0, 7, 2) == dataset.sample(0, 7, distractors=2)


def test_half_of_the_samples_of_two_steps_are_about_carrying() -> None:
    carrying = [dataset.moment(0, index, "two_step").held is not None for index in range(200)]
    assert 0.3 < sum(carrying) / 200 < 0.5


@pytest.mark.parametrize("name", tasks.TASKS)
def test_without_looking_hardly_any_episode_ends_well(name: str) -> None:
    found = evaluate.bounds(100, distractors=name)
    assert found["success_expert"] >= 0.99 and found["success_blind"] < 0.10


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    with pytest.raises(LfError, match=r"no task 'colors'.*colour"):
        tasks.drawn("colors", 0, 0)
