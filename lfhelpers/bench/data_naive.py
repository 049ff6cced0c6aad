"""The plain loader that the others are measured against: what tutorials of `torch.utils.data` show, without mistakes.

Small files, Pillow, and each image normalised to float32 by itself in a worker, so that four times the bytes are
collated and handed over. Its pixels are those of every other engine on the Pillow path.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lfhelpers.data import Manifest, Plan, draws
from lfhelpers.data.loader import Batch
from lfhelpers.data.manifest import key
from lfhelpers.runs import new_folder


def unpack(manifest: Manifest, member: str, folder: Path) -> list[Path]:
    """One member of each sample as a small file of its own; the files of an earlier call are taken as they are."""
    paths = [folder / f"{key(index)}.{member}" for index in range(manifest.samples)]
    if not folder.exists():
        with new_folder(folder) as building:
            for index, path in enumerate(paths):
                (building / path.name).write_bytes(manifest.read(index, [member])[member])
    return paths


class Files(Dataset[Tensor]):
    """Image `index` of small files, float32 [3, P, P] in -1..1, its centre cut out."""

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        self.paths = paths
        self.size = size

    def __getitem__(self, index: int) -> Tensor:
        image = Image.open(self.paths[index]).convert("RGB")
        box = draws.crop_box(draws.CENTRE.offset, *image.size)
        small = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(small, dtype=np.float32) / 127.5 - 1
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class PlannedBatches(Sampler[list[int]]):
    """The ids of the plan's batches in steps 0..steps-1."""

    plan: Plan
    steps: int

    def __iter__(self) -> Iterator[list[int]]:
        return (self.plan.slots(step, micro, 0)[0].tolist() for step, micro in self.plan.sequence(0, self.steps))

    def __len__(self) -> int:
        return sum(self.plan.micro_batches(step) for step in range(self.steps))


class PlainLoader:
    """Batches {"images": float32 [B, 1, 3, P, P]} in the plan's order, from `workers` processes."""

    def __init__(self, files: Files, plan: Plan, steps: int, workers: int, pin: bool) -> None:
        sampler = PlannedBatches(plan, steps)
        with warnings.catch_warnings():  # that there are more workers than cores
            warnings.filterwarnings("ignore", "This DataLoader will create")
            self._loader = DataLoader(files, batch_sampler=sampler, num_workers=workers, pin_memory=pin)
        self._length = len(sampler)

    def __iter__(self) -> Iterator[Batch]:
        return ({"images": images.unsqueeze(1)} for images in self._loader)

    def __len__(self) -> int:
        return self._length

    def close(self) -> None:
        """Workers end with the iterator."""

    def __enter__(self) -> PlainLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
