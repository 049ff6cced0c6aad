"""What a base is taught from: moments of the tabletop world, drawn at about the model's size and labelled densely.

The action loss alone does not teach a model to look (its mean path is a trap), so each sight comes with answers that
leave nothing to guess: for every image token which colours are there, of which shape and where, and for the instruction
where the object is that it names. Pictures are drawn small, without the way through JPEG: they differ from what the
data engines deliver by about one step of 256, and cost a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lfhelpers.workloads.vla.sizes import VisionSize
from lfhelpers.workloads.vla.tabletop import dataset
from lfhelpers.workloads.vla.tabletop.render import CAMERAS, HEIGHT, WIDTH, render, seen
from lfhelpers.workloads.vla.tabletop.scene import AREA, COLOURS, SHAPES, generator
from lfhelpers.workloads.vla.tabletop.simulator import Simulator
from lfhelpers.workloads.vla.tabletop.sprites import MIDDLE
from lfhelpers.workloads.vla.workload import Vla

CROP = 0.95
"""The share of each side that is kept, in the middle, as evaluation keeps it."""
NEAR = 0.15
"""Metres that count as 1 in what the wrist camera's tokens tell of places: it sees about so far."""
STREAM = 4
"""Of the random numbers that choose among tasks."""
_COLOUR = {name: number for number, name in enumerate(COLOURS)}


class Lessons(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Lesson i of `seed`: a sample as the workload makes it, its pictures, and the dense answers."""

    def __init__(self, workload: Vla, seed: int, tasks: Sequence[str | int], answer_tokens: int) -> None:
        self.workload, self.seed, self.tasks, self.answer_tokens = workload, seed, tuple(tasks), answer_tokens

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        task = self.tasks[int(generator(self.seed, index, STREAM).integers(len(self.tasks)))]
        episode = dataset.moment(self.seed, index, task)
        vision = self.workload.size.vision
        lesson = self.workload.sample(dataset.unseen(episode))
        for name in ("text_tokens", "text_labels"):
            lesson[name] = lesson[name][:self.answer_tokens].clone()
        lesson["images"] = torch.from_numpy(pictures(episode, vision.pixels))
        lesson["sight"] = torch.from_numpy(sights(episode, vision))
        lesson["place"] = torch.from_numpy(places(episode))
        return lesson


def pictures(episode: Simulator, size: int) -> NDArray[np.uint8]:
    """uint8 [2, size, size, 3]: the two cameras' pictures, drawn at a half or a quarter where that isn't too small."""
    reduce = max(part for part in (1, 2, 4) if HEIGHT * CROP / part >= size or part == 1)
    return np.stack([_shrunk(render(episode.scene, episode.gripper, camera, reduce), size) for camera in CAMERAS])


def sights(episode: Simulator, vision: VisionSize) -> NDArray[np.float32]:
    """float32 [image tokens, 7 colours, 4]: is one there (0 or 1), where (x, y), and the number of its shape.

    Places are the table's, in units of AREA, in what the front camera sees, and from the gripper, in units of NEAR, in
    what the wrist camera sees. Of several of one colour in a token the nearest to the camera counts.
    """
    half = vision.grid // 2
    found = np.zeros((len(CAMERAS), half, half, len(COLOURS), 4), dtype=np.float32)
    for thing in sorted(episode.scene.things, key=lambda thing: -thing.y):
        for view, camera in enumerate(CAMERAS):
            spot = seen(episode.gripper, camera, (thing.x, thing.y, thing.z + MIDDLE * thing.radius))
            column, row = (int(((part / whole - 0.5) / CROP + 0.5) * half // 1)
                           for part, whole in ((spot.column, WIDTH), (spot.row, HEIGHT)))
            if 0 <= column < half and 0 <= row < half:
                place = (thing.x / AREA[0], thing.y / AREA[1]) if view == 0 else (
                    (thing.x - episode.gripper.x) / NEAR, (thing.y - episode.gripper.y) / NEAR)
                found[view, row, column, _COLOUR[thing.colour]] = 1, *place, SHAPES.index(thing.shape)
    return found.reshape(-1, len(COLOURS), 4)


def places(episode: Simulator) -> NDArray[np.float32]:
    """float32 [4]: where the named object stands, and where it is to be put (there too, without a goal), by AREA."""
    world = episode.scene
    goal = world.named if world.goal is None else world.things[world.goal]
    return np.array([[thing.x / AREA[0], thing.y / AREA[1]] for thing in (world.named, goal)], np.float32).reshape(4)


def batches(lessons: Lessons, first: int, count: int, batch: int, workers: int) -> Any:
    """An iterator of `count` batches of lessons from number `first` on; the same whatever the number of workers."""
    numbers = [list(range(first + batch * i, first + batch * (i + 1))) for i in range(count)]
    return iter(torch.utils.data.DataLoader(
        lessons, batch_sampler=numbers, num_workers=workers, prefetch_factor=2 if workers else None,
        multiprocessing_context="fork" if workers else None))


def _shrunk(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    height, width = picture.shape[:2]
    left, top = width * (1 - CROP) / 2, height * (1 - CROP) / 2
    box = (left, top, width - left, height - top)
    return np.asarray(Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR, box=box))
