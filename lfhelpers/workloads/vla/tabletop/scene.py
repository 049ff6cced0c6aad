"""What stands on the table: a scene is a pure function of (seed, index), drawn from a counter-based generator.

Philox keyed by both numbers makes any scene directly addressable: no state is carried from one scene to the next, so
order, processes and resuming never change a byte. Lengths are metres; x runs to the right, y away from the front camera,
z up. The target's colour is unique among the objects, so an instruction that names it is never ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lfhelpers.errors import LfError

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (205, 28, 32), "orange": (236, 120, 14), "yellow": (232, 208, 28), "green": (28, 140, 48),
    "cyan": (50, 200, 214), "blue": (30, 66, 200), "purple": (132, 40, 168), "white": (226, 226, 222)}
SHAPES = ("block", "ball", "cylinder", "cone", "star")
RADII = (0.040, 0.046, 0.052)
"""Small, medium and large: half of an object's width, in metres."""
YAWS = 6
"""Quantised turns of an object about its vertical axis; drawings are kept once per turn."""
AREA = (0.30, 0.20)
"""Objects stand within plus and minus this of the table's centre."""
SPACING = 0.125
"""Least distance between two objects' centres: more than two of the largest."""
STARTS = (0.08, 0.06)
"""The gripper starts within plus and minus this of the centre, so that its place says nothing of the target's."""
MOST_DISTRACTORS = 5
LOOKS = 8
"""Table tops: even numbers are wooden, odd ones are covered with cloth."""


class Gripper(NamedTuple):
    """The point between the fingertips, and the opening from 0 (closed) to 1."""

    x: float
    y: float
    z: float
    opening: float = 1.0


@dataclass(frozen=True)
class Thing:
    """One object; `z` is the height of its foot, above 0 only while it is held."""

    colour: str
    shape: str
    radius: float
    x: float
    y: float
    yaw: int = 0
    z: float = 0.0

    @property
    def name(self) -> str:
        """Colour and shape, as an instruction says it."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """Objects, which of them is named, the table's look (0..LOOKS-1), the light (0..1), and where the gripper starts."""

    things: tuple[Thing, ...]
    target: int
    look: int
    light: float
    noise: int
    start: Gripper

    @property
    def named(self) -> Thing:
        """The object that the instruction names."""
        return self.things[self.target]


def generator(seed: int, index: int, stream: int = 0) -> np.random.Generator:
    """The random numbers of (seed, index); streams are independent (Salmon et al. 2011, counter-based generators)."""
    if seed < 0 or index < 0:
        raise LfError(f"tabletop: seed {seed} and index {index} must both be 0 or more.")
    key = np.array([seed, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], dtype=np.uint64)))


def scene(seed: int, index: int, distractors: int = 3) -> Scene:
    """Scene number `index` of `seed`, with 0 to 5 objects besides the named one; raises LfError outside of that."""
    if not 0 <= distractors <= MOST_DISTRACTORS:
        raise LfError(f"tabletop: distractors = {distractors} does not fit on the table; take 0 to {MOST_DISTRACTORS}.")
    draw = generator(seed, index)
    count = distractors + 1
    target = int(draw.integers(count))
    named, *others = draw.permutation(list(COLOURS)).tolist()
    colours = [named if i == target else str(draw.choice(others)) for i in range(count)]
    things = tuple(Thing(colour, str(draw.choice(SHAPES)), float(draw.choice(RADII)), x, y, int(draw.integers(YAWS)))
                   for colour, (x, y) in zip(colours, _places(draw, count), strict=True))
    start = Gripper(*(float(draw.uniform(-limit, limit)) for limit in STARTS), float(draw.uniform(0.14, 0.20)))
    return Scene(things, target, int(draw.integers(LOOKS)), float(draw.random()), int(draw.integers(1 << 31)), start)


def _places(draw: np.random.Generator, count: int) -> list[tuple[float, float]]:
    """`count` centres, uniform over the area under the condition that none is nearer to another than SPACING."""
    while True:
        places = draw.uniform(-1.0, 1.0, (count, 2)) * AREA
        gaps = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
        if gaps[np.triu_indices(count, 1)].min(initial=np.inf) >= SPACING:
            return [(float(x), float(y)) for x, y in places]
