"""An evaluation that goes through the training loader: its figure is another one each time."""

from __future__ import annotations

import numpy as np
from PIL import Image

from lfhelpers.data import draws
from lfhelpers.data.loader import view
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "validation scatters, the best checkpoint is a matter of luck, and a gate on quality needs many seeds",
    "held-out images are cropped and coloured at random, as training's are",
    "centre crops and true colours for whatever is judged",
    "change of a model's figure between two evaluations of the same weights [%]")
IMAGES, SIZE = 16, 16


def break_it() -> float:
    """Percent of change, with augmented images."""
    return _change(augmented=True)


def detect(broken: bool = True) -> str:
    """What two evaluations of the same weights say; empty where they agree."""
    change = _change(augmented=broken)
    return f"the same weights judged twice differ by {change:.2g} %: held-out data are augmented" if change else ""


def fix_it() -> float:
    """The same with centre crops."""
    return _change(augmented=False)


def _change(augmented: bool) -> float:
    first, second = (_figure(epoch, augmented) for epoch in (0, 1))
    return 100 * abs(second / first - 1)


def _figure(epoch: int, augmented: bool) -> float:
    """A fixed linear model's mean output over the held-out images."""
    random = np.random.default_rng(0)
    ids = np.arange(IMAGES)
    drawn = draws.draw(0, epoch, ids) if augmented else [draws.CENTRE] * IMAGES
    frames = [Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)) for _ in ids]
    weights = random.normal(size=(SIZE, SIZE, 3))
    pixels = np.stack([view(frame, draw, SIZE) for frame, draw in zip(frames, drawn, strict=True)]) / 255
    return float((pixels * weights).sum((1, 2, 3)).mean())
