"""Tasks by difficulty: what stands on the table and what is asked for, each a pure function of (seed, index).

`one` asks for sight alone, `colour` for the named one among several, `shape` has others of the same colour and of the
same shape beside it, so that only both words together say which one is meant, and `two_step` is done when the named
object was put down on another. In `across_pair` and `across` the scenes are those of `pair` and `colour`, and the arm
stands on the other side of the table: what was right is left, as for a policy that is moved to another robot. A base
learns some of them and is fine-tuned on another, so that there is something to learn: who goes by colour alone is right
in a third of the scenes of `shape`, and who moves as before is never right in `across`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lfhelpers.errors import LfError, nearest
from lfhelpers.workloads.vla.tabletop.scene import COLOURS, SHAPES, Scene, Thing, generator, scene

STREAM = 3
"""Of the random numbers that a task adds to a scene's own."""


@dataclass(frozen=True)
class Task:
    """One kind of scenes and instructions."""

    name: str
    objects: tuple[int, int]
    """Fewest and most objects on the table."""
    twins: bool = False
    """Two others share the named one's colour, and one its shape."""
    places: bool = False
    """The named object is to be put on another."""
    turned: bool = False
    """The arm stands across the table."""

    def scene(self, seed: int, index: int) -> Scene:
        """Scene number `index` of `seed`."""
        draw = generator(seed, index, STREAM)
        count = int(draw.integers(self.objects[0], self.objects[1] + 1))
        world = scene(seed, index, count - 1)
        if self.twins:
            return _with_twins(world, draw)
        return _with_goal(world, draw) if self.places else replace(world, turned=self.turned)


TASKS: dict[str, Task] = {task.name: task for task in (
    Task("one", (1, 1)),
    Task("pair", (1, 2)),
    Task("colour", (2, 6)),
    Task("shape", (4, 6), twins=True),
    Task("two_step", (2, 4), places=True),
    Task("across_pair", (1, 2), turned=True),
    Task("across", (2, 6), turned=True),
)}


def find(name: str) -> Task:
    """The task called `name`. Raises LfError with the nearest name where there is none."""
    if name not in TASKS:
        raise LfError(f"tabletop: there is no task '{name}'; {nearest(name, TASKS)}")
    return TASKS[name]


def drawn(task: str | int, seed: int, index: int) -> Scene:
    """Scene `index` of a task's name, or of a fixed number of distractors, whose colours differ from the target's."""
    return scene(seed, index, task) if isinstance(task, int) else find(task).scene(seed, index)


def _with_twins(world: Scene, draw: np.random.Generator) -> Scene:
    others = [number for number in draw.permutation(len(world.things)).tolist() if number != world.target]
    things, named = list(world.things), world.named
    shapes = draw.permutation([shape for shape in SHAPES if shape != named.shape]).tolist()
    for number, shape in zip(others[:2], shapes, strict=False):
        things[number] = replace(things[number], colour=named.colour, shape=shape)
    things[others[2]] = replace(things[others[2]], shape=named.shape)
    return replace(world, things=tuple(things))


def _with_goal(world: Scene, draw: np.random.Generator) -> Scene:
    """All colours differ, so that both names are clear."""
    colours = draw.permutation([colour for colour in COLOURS if colour != world.named.colour]).tolist()

    def dyed(number: int, thing: Thing) -> Thing:
        return thing if number == world.target else replace(thing, colour=colours[number])

    others = [number for number in range(len(world.things)) if number != world.target]
    things = tuple(dyed(number, thing) for number, thing in enumerate(world.things))
    return replace(world, things=things, goal=int(draw.choice(others)))
