"""What stands on the table: a scene is a pure function of (seed, index), drawn from a counter-based generator.

Philox keyed by both numbers makes any scene directly addressable: no state is carried from one scene to the next, so
order, processes and resuming never change a byte. Lengths are metres; x runs to the right, y away from the front
camera, z up. The target's colour is unique among the objects, so an instruction that names it is never ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lfhelpers.errors import LfError

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (208, 26, 26), "yellow": (232, 210, 24), "green": (26, 146, 42), "cyan": (40, 198, 212),
    "blue": (30, 40, 208), "purple": (156, 34, 176), "white": (226, 226, 222)}
"""Hues at least 45 degrees apart: an augmentation that turns all hues by up to 22 leaves each colour its name."""
SHAPES = ("block", "ball", "cylinder", "pyramid", "star")
RADII = (0.040, 0.046, 0.052)
"""Small, medium and large: half of an object's width, in metres."""
YAWS = 6
"""Quantised turns of an object about its vertical axis; drawings are kept once per turn."""
AREA = (0.30, 0.20)
"""Objects stand within plus and minus this of the table's centre."""
SPACING = 0.125
"""Least distance between two objects' centres: more than two of the largest."""
STARTS = ((-0.08, 0.08), (-0.06, 0.06), (0.14, 0.20))
"""Where the gripper starts: over the middle, drawn apart from the objects, so that its place tells nothing of them."""
MOST_DISTRACTORS = 5
LOOKS, LIGHTS = 8, 31
"""Table tops: even numbers are wooden, odd ones are covered with cloth. Brightness has 32 steps."""


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
    """All that a picture, an instruction and an episode are made from."""

    things: tuple[Thing, ...]
    target: int
    """The number of the object that the instruction names."""
    look: int
    """The table top, 0..LOOKS-1."""
    light: int
    """Brightness, 0..LIGHTS."""
    noise: int
    """Chooses the sensor noise and the phrasings."""
    start: Gripper
    """Where the gripper is at the start of an episode."""
    goal: int | None = None
    """The number of the object on which the named one is to be put; None where it is to be picked up."""
    turned: bool = False
    """The arm stands across the table: it says and is told x and y with the other sign."""

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
    x, y, z = (float(draw.uniform(low, high)) for low, high in STARTS)
    look, light, noise = (int(draw.integers(high)) for high in (LOOKS, LIGHTS + 1, 1 << 31))
    return Scene(things, target, look, light, noise, Gripper(x, y, z))


def _places(draw: np.random.Generator, count: int) -> list[tuple[float, float]]:
    """`count` centres, uniform over the area under the condition that none is nearer to another than SPACING."""
    while True:
        places = draw.uniform(-1.0, 1.0, (count, 2)) * AREA
        gaps = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
        if gaps[np.triu_indices(count, 1)].min(initial=np.inf) >= SPACING:
            return [(float(x), float(y)) for x, y in places]
