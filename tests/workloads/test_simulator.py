"""The closed loop: the expert gets the named object, a policy that does not look does not, and nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.workloads.vla.tabletop import simulator
from lfhelpers.workloads.vla.tabletop.scene import Gripper, Scene, Thing, scene
from lfhelpers.workloads.vla.tabletop.simulator import LIMITS, STRIDE, Floats, Policy, Simulator, View, expert, rollout

EPISODES = 100


def following(world: Scene) -> Policy:
    """The policy that does as the expert says for `world`."""
    return lambda front, wrist, words, state: expert(world, state)


def grippers() -> st.SearchStrategy[Gripper]:
    return st.builds(Gripper, *(st.floats(*limits) for limits in LIMITS), st.floats(0, 1))


@pytest.mark.parametrize("distractors", range(6))
def test_the_expert_succeeds_and_never_looks_at_a_picture(distractors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "render", None)
    worlds = [scene(1, index, distractors) for index in range(EPISODES)]
    assert sum(rollout(world, following(world), chunks=1) for world in worlds) >= 98


@pytest.mark.parametrize("distractors", range(6))
def test_a_policy_that_ignores_the_picture_fails(distractors: int) -> None:
    worlds = [scene(1, index, distractors) for index in range(EPISODES)]
    training = [scene(0, index, distractors) for index in range(500)]
    mean = np.mean([expert(world, Simulator(world).state) for world in training], axis=0)
    assert sum(rollout(world, lambda *_: mean) for world in worlds) <= 10
    middle = replace(scene(0, 0, 0), things=(Thing("red", "ball", 0.04, 0.0, 0.0),))
    assert sum(rollout(world, following(middle)) for world in worlds) <= 10


@given(grippers(), st.integers(0, 1000), st.integers(0, 5))
def test_the_expert_gets_the_object_from_anywhere(gripper: Gripper, index: int, distractors: int) -> None:
    episode = Simulator(scene(0, index, distractors), gripper)
    for _ in range(simulator.CHUNKS):
        episode.run(expert(episode.scene, episode.state))
    assert episode.success


@given(grippers(), st.integers(0, 1000))
def test_the_experts_chunk_stays_in_range_and_does_not_turn(gripper: Gripper, index: int) -> None:
    world = scene(0, index)
    chunk = expert(world, Simulator(world, gripper).state)
    assert chunk.shape == (16, 7) and chunk.dtype == np.float32
    assert np.abs(chunk).max() <= 1 and not chunk[:, 3:6].any()


def test_the_experts_path_ends_over_the_object_with_the_speed_of_minimum_jerk() -> None:
    world = scene(0, 4)
    chunk = expert(world, Simulator(world).state)
    travelled = chunk[:, :2].sum(0) * STRIDE[:2] + world.start[:2]
    np.testing.assert_allclose(travelled, (world.named.x, world.named.y), atol=1e-5)
    speed = np.abs(chunk[:11, 0])
    np.testing.assert_allclose(speed, speed[::-1], atol=1e-5)  # symmetric, at rest at both ends, fastest in the middle
    assert speed.argmax() == 5 and speed[0] < 0.02 * speed.sum()


def test_state_and_pictures_are_the_same_whatever_is_named() -> None:
    world = scene(0, 9)
    seen = [Simulator(replace(world, target=target)).observe() for target in range(4)]
    for front, wrist, state in seen[1:]:
        assert (front == seen[0][0]).all() and (wrist == seen[0][1]).all() and (state == seen[0][2]).all()
    assert seen[0][2].shape == (8,) and seen[0][2].dtype == np.float32


def test_picking_up_another_object_ends_the_episode_as_a_failure() -> None:
    world = scene(0, 1)
    wrong = replace(world, target=(world.target + 1) % 4)
    episode = Simulator(world)
    episode.run(expert(wrong, episode.state))
    assert episode.done and not episode.success and episode.held == wrong.target
    before = episode.state
    episode.run(np.ones((16, 7)))
    assert (episode.state == before).all()
    assert not Simulator(world, Gripper(0, 0, 0.2, 0.0), held=wrong.target).success


def test_from_too_far_away_the_expert_comes_nearer_high_and_open() -> None:
    world = scene(0, 1, distractors=0)
    world = replace(world, things=(replace(world.named, x=0.3, y=0.2),))
    episode = Simulator(world, Gripper(-0.3, -0.2, 0.02))
    chunk = expert(world, episode.state)
    episode.run(chunk)
    assert (chunk[:, 6] == 1).all() and episode.gripper.z > 0.1
    assert 0 < episode.gripper.x < 0.3


def test_closing_on_nothing_can_be_tried_again() -> None:
    world = scene(0, 1, distractors=0)
    aside = replace(world, things=(replace(world.named, x=world.named.x + 0.06),))
    plans = iter([aside, world])
    assert rollout(world, lambda front, wrist, words, state: expert(next(plans), state))


def test_a_grasp_needs_the_fingers_low_and_near() -> None:
    world = scene(0, 1, distractors=0)
    close = np.array([0, 0, 0, 0, 0, 0, -1.0])

    def held(dx: float, height: float) -> bool:
        episode = Simulator(world, Gripper(world.named.x + dx, world.named.y, height))
        episode.step(close)
        episode.step(close)
        return episode.held == world.target

    assert held(0.0, 0.02) and held(0.04, 0.05)
    assert not held(0.05, 0.02) and not held(0.0, 0.07)


def test_an_object_that_is_let_go_stands_where_it_was_dropped() -> None:
    world = scene(0, 1, distractors=0)
    episode = Simulator(world, Gripper(world.named.x, world.named.y, 0.02, 0.0), held=0)
    for _ in range(2):
        episode.step(np.array([0.5, 0, 0.3, 0, 0, 0, -1.0]))
    assert episode.scene.named.z > 0 and episode.state[4] == 1
    for _ in range(2):
        episode.step(np.array([0, 0, 0, 0, 0, 0, 1.0]))
    assert episode.held is None and episode.state[4] == 0
    assert episode.scene.named.z == 0
    assert episode.scene.named.x == pytest.approx(world.named.x + STRIDE[0])


def test_the_gripper_stays_within_its_limits_and_actions_within_one() -> None:
    episode = Simulator(scene(0, 3))
    episode.run(np.full((16, 7), 50.0))
    assert list(episode.gripper) == [*(high for _, high in LIMITS), 1.0]
    np.testing.assert_allclose(episode.state[:4], 1.0)


def test_a_policys_pictures_are_drawn_on_demand_and_show_the_moment() -> None:
    world = scene(0, 2)
    seen: list[np.ndarray] = []

    def policy(front: View, wrist: View, words: str, state: Floats) -> Floats:
        seen.append(np.asarray(front))
        assert world.named.name in words
        return np.zeros((16, 7), dtype=np.float32)

    rollout(world, policy, chunks=2)
    assert seen[0].shape == (480, 640, 3) and seen[0].dtype == np.uint8
    assert (seen[0] != seen[1]).any()  # half closed by the zeros of the first chunk


def test_a_chunk_of_another_shape_is_refused() -> None:
    with pytest.raises(LfError, match=r"shape \(16, 6\); a chunk is \[16, 7\]"):
        Simulator(scene(0, 0)).run(np.zeros((16, 6)))
