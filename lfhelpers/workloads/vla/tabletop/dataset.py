"""Samples for training and for held-out evaluation: what the policy sees, is told, and should do.

Demonstrations alone would show only states of a perfect episode's start, and a policy that has missed would meet states
that it never saw. So four of ten samples begin elsewhere, and the expert, which answers from any state, labels them.
Most of those are spread over the whole table, whatever is named: a sample in which the gripper is always near its goal
teaches to stay, not to look.
"""

from __future__ import annotations

import json

import numpy as np

from lfhelpers.workloads.vla.tabletop.render import jpeg
from lfhelpers.workloads.vla.tabletop.scene import AREA, Gripper, generator
from lfhelpers.workloads.vla.tabletop.simulator import Simulator, expert
from lfhelpers.workloads.vla.tabletop.tasks import drawn
from lfhelpers.workloads.vla.tabletop.text import caption, instruction, questions

START, ANYWHERE, NEAR, HOLDING = 0.60, 0.30, 0.08, 0.02
"""Shares of samples: at an episode's start; anywhere over the table, open or closed; close to the target after a missed
grasp; with the target in the gripper and not yet lifted."""
CARRYING = 0.40
"""Of the samples of a scene with a goal: the target is in the gripper somewhere over the table."""


def sample(seed: int, index: int, distractors: int | str = 3) -> dict[str, bytes]:
    """The six members of sample `index`, by extension, in a shard's order; training uses seed 0, evaluation seed 1.

    distractors: their number, or the name of a task (tabletop.tasks), which says what else is there.
    """
    return members(moment(seed, index, distractors))


def members(episode: Simulator) -> dict[str, bytes]:
    """What a sample holds of one moment of an episode.

    Two JPEGs; txt is the instruction; state.f32 is 8 and action.f32, the expert's answer, 16 x 7 little-endian float32;
    json is {"caption": str, "questions": [[question, answer], ...]}.
    """
    front, wrist = (jpeg(np.asarray(view)) for view in episode.views())
    return {"front.jpg": front, "wrist.jpg": wrist, **unseen(episode)}


def unseen(episode: Simulator) -> dict[str, bytes]:
    """The members of `members` that are no pictures."""
    words, state = {"caption": caption(episode.scene), "questions": questions(episode.scene)}, episode.state
    return {
        "txt": instruction(episode.scene).encode("ascii"),
        "state.f32": state.astype("<f4").tobytes(),
        "action.f32": expert(episode.scene, state).astype("<f4").tobytes(),
        "json": json.dumps(words, separators=(",", ":")).encode("ascii"),
    }


def moment(seed: int, index: int, distractors: int | str = 3) -> Simulator:
    """The episode of sample `index`, in one of the four kinds of state, or carrying what is to be put elsewhere."""
    world, draw = drawn(distractors, seed, index), generator(seed, index, stream=2)
    kind, offset = draw.random(), draw.uniform(-1.0, 1.0, 2)
    height, opening = float(draw.uniform(0.02, 0.20)), float(draw.integers(2))
    if world.goal is not None and draw.random() < CARRYING:
        x, y = (float(share * reach) for share, reach in zip(offset, AREA, strict=True))
        return Simulator(world, Gripper(x, y, 0.06 + height / 2, 0.0), held=world.target)
    if kind < START:
        return Simulator(world)
    if kind < START + ANYWHERE:
        x, y = (float(share * reach * 0.8) for share, reach in zip(offset, AREA, strict=True))
        return Simulator(world, Gripper(x, y, height, opening))
    if kind < START + ANYWHERE + NEAR:
        x, y = (float(share) * 0.08 for share in offset)
        return Simulator(world, Gripper(world.named.x + x, world.named.y + y, 0.05 + height / 2, 0.0))
    return Simulator(world, Gripper(world.named.x, world.named.y, 0.02 + height / 5, 0.0), held=world.target)
