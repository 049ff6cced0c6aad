"""An image of one colour, normalised by its own variance: nothing divided by nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from lfhelpers.pitfalls.base import About
from lfhelpers.train.nonfinite import in_batch

ABOUT = About(
    "the loss is nan every few thousand steps, never at the same one",
    "a black or damaged image has no variance, and the normalisation divides by it",
    "a fixed mean and spread, as the model was trained with; or a floor under the variance",
    "numbers of the black sample that are not finite [%]")


def break_it() -> float:
    """Percent of the black sample's numbers, normalised by its own mean and spread."""
    return _share(_batch(own=True))


def detect(broken: bool = True) -> str:
    """What the guard says of the batch; empty for a clean one."""
    found = in_batch({"images": _batch(own=broken), "ids": torch.tensor([11, 12, 13])}, "batch")
    return found.text if found else ""


def fix_it() -> float:
    """The same with a fixed mean and spread."""
    return _share(_batch(own=False))


def _batch(own: bool) -> Tensor:
    """Three images of which the second is black, normalised."""
    images = torch.randint(256, (3, 3, 16, 16), generator=torch.Generator().manual_seed(0)).float()
    images[1] = 0
    if not own:
        return images / 127.5 - 1
    return (images - images.mean((1, 2, 3), keepdim=True)) / images.std((1, 2, 3), keepdim=True)


def _share(images: Tensor) -> float:
    return 100 * float((~torch.isfinite(images[1])).float().mean())
