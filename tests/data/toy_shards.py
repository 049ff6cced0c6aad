"""Small samples for the data tests: two JPEG views and a number that says whose they are. Writers import this file."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from lfhelpers.data import Manifest, shards

if TYPE_CHECKING:
    from torch import Tensor

SAMPLES, HELD = 37, 20


@dataclass(frozen=True)
class ToyFields:
    """What a workload would ask for."""

    images: tuple[str, ...] = ("front.jpg", "wrist.jpg")
    size: int = 24
    others: tuple[str, ...] = ("number",)


def photo(index: int, view: int, width: int = 96, height: int = 72, quality: int = 80) -> bytes:
    """A JPEG of smooth colours with some grain, different for each sample and view."""
    draw = np.random.default_rng([index, view])
    colours = Image.fromarray(draw.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(colours.resize((width, height), Image.Resampling.BICUBIC))
    grain = draw.normal(0, 8, (height, width, 1))
    buffer = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def sample(index: int) -> dict[str, bytes]:
    """The members of sample `index`."""
    return {"front.jpg": photo(index, 0), "wrist.jpg": photo(index, 1), "number": struct.pack("<q", index)}


def held_sample(go: Path, index: int) -> dict[str, bytes]:
    """The same, but one of the third shard of four waits until `go` is there."""
    while index == HELD and not go.exists():
        time.sleep(0.01)
    return sample(index)


def failing_sample(index: int) -> dict[str, bytes]:
    """Sample 11 can't be made."""
    if index == 11:
        raise ZeroDivisionError("no scene")
    return sample(index)


def tensors(members: Mapping[str, bytes]) -> dict[str, Tensor]:
    """What a workload's sample() would give."""
    import torch  # not above: writers need none of it

    return {"number": torch.tensor(struct.unpack("<q", members["number"])[0])}


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a dataset."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def make(folder: Path, **options: object) -> Manifest:
    """37 samples in 4 shards of 9 or 10."""
    return shards.write(folder, sample, SAMPLES, readers=1, progress=False, **options)  # type: ignore[arg-type]
