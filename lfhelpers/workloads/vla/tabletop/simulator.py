"""The closed loop: a gripper that moves as told, an object that is held or not, and the expert that shows how.

Kinematic on purpose: a policy fails here because it does not see, read or aim well, never because of contact physics,
and an episode costs a fraction of a millisecond besides its pictures. Rates of success therefore compare training
recipes; they say nothing of a real arm. A chunk of 16 actions is carried out blindly, then the policy looks again
(receding horizon), at most CHUNKS times. What the gripper closes on ends the matter: another object than the named one
is a failure, nothing at all may be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lfhelpers.errors import LfError
from lfhelpers.workloads.vla.tabletop.render import render
from lfhelpers.workloads.vla.tabletop.scene import Gripper, Scene
from lfhelpers.workloads.vla.tabletop.text import instruction

STEPS, DIMENSIONS, STATE = 16, 7, 8
CHUNKS = 3
"""Chunks of an episode: one is enough for an expert, the others are second tries."""
STRIDE = (0.070, 0.048, 0.070)
"""Metres that an action of 1 moves the gripper along x, y and z."""
LIMITS = ((-0.36, 0.36), (-0.26, 0.26), (0.015, 0.25))
"""Where the gripper can go, in metres."""
GRASP = 0.045
"""The gripper closes on an object whose centre is at most this far away in the plane, in metres ..."""
LOW = 0.06
"""... if the fingertips are below this height."""
LIFTED = 0.08
"""The height at which a held object counts as picked up."""
CLOSED = 0.4
"""Openings below this hold."""
_REACH_STEPS, _CLOSE_STEPS = 11, 2
_GRASP_HEIGHT, _CARRY_HEIGHT = 0.02, 0.13

Floats = NDArray[np.float32]
Policy = Callable[["View", "View", str, Floats], Floats]


class View:
    """One camera's picture of a moment, drawn when it is looked at: np.asarray(view) is uint8 [480, 640, 3]."""

    def __init__(self, scene: Scene, gripper: Gripper, camera: str) -> None:
        self.scene, self.gripper, self.camera = scene, gripper, camera

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        picture = render(self.scene, self.gripper, self.camera)
        return picture if dtype is None else picture.astype(dtype)


class Simulator:
    """An episode in `scene`. `success` and `done` say how it stands; a done episode ignores further actions."""

    def __init__(self, scene: Scene, gripper: Gripper | None = None, held: int | None = None) -> None:
        """`gripper` and `held`, the number of a held object, start in the middle of an episode."""
        self.scene, self.gripper, self.held = scene, gripper or scene.start, held
        self._carry()

    @property
    def success(self) -> bool:
        """The named object is held and lifted; where the scene has a goal: it was let go there."""
        if self.scene.goal is not None:
            named, goal = self.scene.named, self.scene.things[self.scene.goal]
            return self.held is None and (named.x - goal.x) ** 2 + (named.y - goal.y) ** 2 <= GRASP**2
        return self.held == self.scene.target and self.gripper.z >= LIFTED

    @property
    def done(self) -> bool:
        """Nothing can change the outcome any more: success, or a wrong object is held."""
        return self.success or self.held not in (None, self.scene.target)

    @property
    def state(self) -> Floats:
        """float32 [8]: x, y, z and opening scaled to about -1..1, whether something is held (0 or 1), and roll, pitch
        and yaw, which stay 0 here. Nothing in it depends on which object is named."""
        g = self.gripper
        place = [2 * (value - low) / (high - low) - 1 for value, (low, high) in zip(g[:3], LIMITS, strict=True)]
        place[:2] = [value * side(self.scene) for value in place[:2]]
        return np.array([*place, 2 * g.opening - 1, self.held is not None, 0, 0, 0], dtype=np.float32)

    def observe(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
        """(front, wrist, state): two pictures, uint8 [480, 640, 3], and the state, float32 [8]."""
        front, wrist = self.views()
        return np.asarray(front), np.asarray(wrist), self.state

    def views(self) -> tuple[View, View]:
        """Both pictures of this moment, not yet drawn."""
        return View(self.scene, self.gripper, "front"), View(self.scene, self.gripper, "wrist")

    def step(self, action: NDArray[Any]) -> None:
        """Carry out one action, [7] within -1..1: moves along x, y, z, three turns that are ignored, and the gripper
        (1 opens, -1 closes, half of the way in a step)."""
        if self.done:
            return
        moves = [min(1.0, max(-1.0, float(value))) for value in action]
        moves[:2] = [move * side(self.scene) for move in moves[:2]]
        x, y, z = (min(high, max(low, value + move * stride)) for value, move, stride, (low, high)
                   in zip(self.gripper[:3], moves[:3], STRIDE, LIMITS, strict=True))
        before = self.gripper.opening
        opening = before + min(0.5, max(-0.5, (moves[6] + 1) / 2 - before))
        self.gripper = Gripper(x, y, z, opening)
        if before >= CLOSED > opening:
            self.held = self._within()
        elif opening >= CLOSED:
            self.held = None
        self._carry()

    def run(self, chunk: NDArray[Any]) -> None:
        """Carry out a chunk, [16, 7]."""
        if np.shape(chunk) != (STEPS, DIMENSIONS):
            raise LfError(f"tabletop: a policy returned actions of shape {np.shape(chunk)}; a chunk is [16, 7].")
        for action in np.asarray(chunk, dtype=np.float64).tolist():
            self.step(action)

    def _within(self) -> int | None:
        """The object between the fingers, if any."""
        if self.gripper.z > LOW:
            return None
        gaps = [(thing.x - self.gripper.x) ** 2 + (thing.y - self.gripper.y) ** 2 for thing in self.scene.things]
        nearest = min(range(len(gaps)), key=gaps.__getitem__)
        return nearest if gaps[nearest] <= GRASP**2 else None

    def _carry(self) -> None:
        """What is held goes with the gripper; what was let go stands on the table."""
        things = list(self.scene.things)
        for i, thing in enumerate(things):
            if i == self.held:
                x, y, z = self.gripper[:3]
                things[i] = replace(thing, x=x, y=y, z=max(0.0, z - _GRASP_HEIGHT))
            elif thing.z:
                things[i] = replace(thing, z=0.0)
        if self.held is not None or things != list(self.scene.things):
            self.scene = replace(self.scene, things=tuple(things))


def side(scene: Scene) -> float:
    """The sign of the table's x and y as the arm says and hears them."""
    return -1.0 if scene.turned else 1.0


def expert(scene: Scene, state: Floats) -> Floats:
    """float32 [16, 7] within -1..1: reach over the named object on a minimum-jerk path (Flash and Hogan 1985), come
    down, close, lift. From a place too far away for one chunk it goes as near as it can, high and open; once the object
    is held it lifts, or carries it to the scene's goal in the same way, and opens."""
    low, high = np.array(LIMITS).T
    place = low + (state[:3].astype(np.float64) + 1) * (high - low) / 2  # in the arm's own x and y, as all that follows
    named = side(scene) * np.array([scene.named.x, scene.named.y])
    chunk = np.zeros((STEPS, DIMENSIONS), dtype=np.float32)
    if state[4] > 0.5 and scene.goal is not None:
        return _put(chunk, side(scene) * np.array([scene.things[scene.goal].x, scene.things[scene.goal].y]), place)
    if state[4] > 0.5:
        chunk[:, 2] = _moves(_CARRY_HEIGHT - place[2], STEPS) / STRIDE[2]
        chunk[:, 6] = -1.0
        return chunk.clip(-1, 1)
    arm = slice(0, _REACH_STEPS)
    chunk[:, 6] = 1.0
    if _reached(chunk, named - place[:2]):
        chunk[4:_REACH_STEPS, 2] = _moves(_GRASP_HEIGHT - place[2], _REACH_STEPS - 4) / STRIDE[2]
        chunk[_REACH_STEPS:, 6] = -1.0
        lift = _REACH_STEPS + _CLOSE_STEPS
        chunk[lift:, 2] = _moves(_CARRY_HEIGHT - _GRASP_HEIGHT, STEPS - lift) / STRIDE[2]
    else:
        chunk[arm, 2] = _moves(_CARRY_HEIGHT - place[2], _REACH_STEPS) / STRIDE[2]
    return chunk.clip(-1, 1)


def _put(chunk: Floats, goal: NDArray[np.float64], place: NDArray[np.float64]) -> Floats:
    """Carry what is held over `goal`, and where that is near enough come down and open."""
    arm = slice(0, _REACH_STEPS)
    chunk[:, 6] = -1.0
    near = _reached(chunk, goal - place[:2])
    chunk[arm, 2] = _moves((_GRASP_HEIGHT if near else _CARRY_HEIGHT) - place[2], _REACH_STEPS) / STRIDE[2]
    if near:
        chunk[_REACH_STEPS:, 6] = 1.0
    return chunk.clip(-1, 1)


def _reached(chunk: Floats, way: NDArray[np.float64]) -> bool:
    """Write the moves along `way`, as far as one chunk takes, into it; whether they reach the end."""
    reach = np.array(STRIDE[:2]) * _REACH_STEPS / 1.875  # a minimum-jerk path's peak is 1.875 times its mean speed
    chunk[:_REACH_STEPS, :2] = np.outer(_moves(1.0, _REACH_STEPS), way.clip(-reach, reach)) / STRIDE[:2]
    return bool(np.all(np.abs(way) <= reach))


def rollout(scene: Scene, policy: Policy, chunks: int = CHUNKS) -> bool:
    """Whether `policy` picks up the named object within `chunks` chunks.

    It is given (front, wrist, instruction, state), the pictures as View, and returns [16, 7].
    """
    episode, words = Simulator(scene), instruction(scene)
    for _ in range(chunks):
        episode.run(policy(*episode.views(), words, episode.state))
        if episode.done:
            break
    return episode.success


def _moves(distance: float, steps: int) -> NDArray[np.float64]:
    """[steps] displacements of a minimum-jerk path over `distance`."""
    t = np.arange(steps + 1) / steps
    return distance * np.diff(t**3 * (10 - 15 * t + 6 * t * t))
