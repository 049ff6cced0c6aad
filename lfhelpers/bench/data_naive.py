"""The plain loaders that the others are measured against: what tutorials show, without mistakes.

`PlainLoader` is `torch.utils.data` on small files, `documented` the webdataset library on shards. Both take Pillow, and
normalise each image to float32 by itself in a worker, so that four times the bytes are collated and handed over.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
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


def normalised(image: Image.Image, size: int) -> Tensor:
    """The image's centre as float32 [3, P, P] in -1..1."""
    image = image.convert("RGB")
    box = draws.crop_box(draws.CENTRE.offset, *image.size)
    small = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(small, dtype=np.float32) / 127.5 - 1
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


class Files(Dataset[Tensor]):
    """Image `index` of small files, float32 [3, P, P] in -1..1, its centre cut out."""

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        self.paths = paths
        self.size = size

    def __getitem__(self, index: int) -> Tensor:
        return normalised(Image.open(self.paths[index]), self.size)

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


def documented(manifest: Manifest, member: str, size: int, micro: int) -> wds.WebDataset:
    """Batches float32 [B, 3, P, P] as webdataset's documentation makes them, without end.

    Each worker draws shards with replacement, so that none is idle where shards are fewer than workers; so the order is
    no plan's.
    """
    urls = [str(Path(manifest.folder) / shard.name) for shard in manifest.shards]
    dataset = wds.WebDataset(urls, resampled=True, shardshuffle=False).decode("pil", only=[member]).to_tuple(member)
    return dataset.map(_Normalised(size)).batched(micro, partial=False)


@dataclass(frozen=True)
class _Normalised:
    """`normalised` of a tuple's image; a closure would not reach workers that are spawned."""

    size: int

    def __call__(self, sample: tuple[Image.Image]) -> tuple[Tensor]:
        return (normalised(sample[0], self.size),)


class PlainLoader:
    """Batches {"images": float32 [B, 1, 3, P, P]} from `workers` processes: `count`, or as many as the sampler has.

    Without a sampler the dataset makes whole batches [B, 3, P, P] by itself.
    """

    def __init__(self, dataset: Dataset[Any], workers: int, pin: bool, sampler: PlannedBatches | None = None,
                 count: int = 0) -> None:
        batches: dict[str, Any] = {"batch_sampler": sampler} if sampler else {"batch_size": None}
        with warnings.catch_warnings():  # that there are more workers than cores
            warnings.filterwarnings("ignore", "This DataLoader will create")
            self._loader = DataLoader(dataset, num_workers=workers, pin_memory=pin, **batches)
        self._length = len(sampler) if sampler else count

    def __iter__(self) -> Iterator[Batch]:
        whole = (batch[0] if isinstance(batch, (tuple, list)) else batch for batch in self._loader)
        return ({"images": images.unsqueeze(1)} for images in itertools.islice(whole, self._length))

    def __len__(self) -> int:
        return self._length

    def close(self) -> None:
        """Workers end with the iterator."""

    def __enter__(self) -> PlainLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
