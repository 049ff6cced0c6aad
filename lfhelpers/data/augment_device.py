"""RandAugment and MixUp of whole batches on the training device: the pixels of `augment`, without a core's help.

A sample's operation is known on the host, so each kind of operation works on the rows that drew it and on no others,
and nothing is computed to be thrown away; nor does the host ever wait for the device. Operations of colour are Pillow's
own arithmetic, in the same integers and 32-bit floats, and give its pixels bit for bit; the moving ones become one
grid_sample and differ by one level of 255 at most. The price beside a fused kernel is some 160 small launches for each
operation that a sample gets, whatever the batch's size: one or two milliseconds of the host's time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lfhelpers.data import augment
from lfhelpers.data.augment import GREY, MOVING, OPERATIONS, Operations
from lfhelpers.recipe.fields import DataFields

_TABLED = ("solarize", "posterize", "brightness")
_LUMA = (19595, 38470, 7471)  # Pillow's weights of red, green and blue in a grey level, of 65536


def apply(images: Tensor, ids: NDArray[np.int64], fields: DataFields, seed: int, epoch: int, step: int, micro: int
          ) -> dict[str, Tensor]:
    """What a recipe with aug_on='device' does to a batch that is on the device: the entries that change.

    images: uint8 [B, V, P, P, 3], left as they are; ids: [B] on the host. Returns "images", and with MixUp also
    "mix" float32 [B], the weight of each row's own sample, and "partner" int64 [B], the row that the rest came from.
    """
    if fields.rand_augment:
        chosen = augment.choose(seed, epoch, ids, fields.rand_augment, fields.rand_magnitude)
        images = rand_augment(images, chosen)
    if not fields.mixup:
        return {"images": images}
    weight = augment.share(fields.mixup, seed, epoch, step, micro)
    return {"images": mix(images, weight)} | mixing(len(images), weight, images.device)


def rand_augment(images: Tensor, chosen: Operations) -> Tensor:
    """uint8 [B, V, P, P, 3] after each sample's operations; all of its views alike."""
    done = images.clone()
    for kinds, values in zip(chosen.kinds.T, chosen.values.T, strict=True):
        for group in (("auto_contrast",), ("equalize",), _TABLED, ("contrast",), ("colour",), ("sharpness",), MOVING):
            rows = np.flatnonzero(np.isin(kinds, [OPERATIONS.index(kind) for kind in group]))
            if len(rows):
                places = _sent(rows, images.device)
                names = [OPERATIONS[kind] for kind in kinds[rows]]
                done.index_copy_(0, places, _operate(group[0], done[places], names, values[rows]))
    return done


def mix(images: Tensor, weight: float) -> Tensor:
    """uint8 [B, ...], each blended with its partner's; see augment.mix."""
    return _blend(images, images.roll(1, 0), 1 - weight)


def mixing(samples: int, weight: float, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The entries "mix" and "partner" that tell the workload of MixUp."""
    return {"mix": torch.full((samples,), weight, device=device),
            "partner": torch.arange(samples, device=device).roll(1)}


def _operate(first: str, x: Tensor, names: list[str], values: NDArray[np.float64]) -> Tensor:
    """x: uint8 [R, V, P, P, 3], rows of one group of operations, named by its first."""
    if first == MOVING[0]:
        return _moved(x, names, values)
    if first == _TABLED[0]:
        tables = np.stack([augment.table(name, value) for name, value in zip(names, values, strict=True)])
        return _looked_up(x, _sent(tables, x.device)[:, None, None, :])
    if first in ("auto_contrast", "equalize"):
        counts = _histograms(x)
        return _looked_up(x, _stretched(counts) if first == "auto_contrast" else _equalised(counts))
    dull = {"contrast": _even, "colour": _grey, "sharpness": _smooth}[first](x)
    return _blend(dull, x, _sent(values.astype(np.float32), x.device).view(-1, 1, 1, 1, 1))


def _blend(first: Tensor, second: Tensor, weight: Any) -> Tensor:
    """first + weight x (second - first), rounded down, as Pillow's Image.blend; weight may lie outside 0..1."""
    base = first.float()
    return (base + weight * (second.float() - base)).clamp(0, 255).to(torch.uint8)


def _grey(x: Tensor) -> Tensor:
    """Pillow's convert("L"), uint8 [..., 1]."""
    red, green, blue = x.int().unbind(-1)
    level = red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2] + 0x8000 >> 16
    return level.to(torch.uint8).unsqueeze(-1)


def _even(x: Tensor) -> Tensor:
    """Each view's mean grey level, [R, V, 1, 1, 1]."""
    level = _grey(x).long()
    return (level.sum((2, 3, 4), keepdim=True).double() / level[0, 0].numel() + 0.5).to(torch.uint8)


def _smooth(x: Tensor) -> Tensor:
    """Pillow's SMOOTH: 3 x 3 with a weight of 5 in the middle, over 13; the border stays."""
    wide = x.int()
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    inner = rows[:, :, :, :-2] + rows[:, :, :, 1:-1] + rows[:, :, :, 2:] + 4 * wide[:, :, 1:-1, 1:-1]
    done = x.clone()
    done[:, :, 1:-1, 1:-1] = ((2 * inner + 13) // 26).to(torch.uint8)
    return done


def _histograms(x: Tensor) -> Tensor:
    """How many pixels of each view and channel have each level: int64 [R, V, 3, 256]."""
    levels = x.movedim(-1, 2).flatten(3).long()
    counts = torch.zeros(*levels.shape[:3], 256, dtype=torch.int64, device=x.device)
    return counts.scatter_add_(3, levels, torch.ones_like(levels))


def _stretched(counts: Tensor) -> Tensor:
    """Pillow's autocontrast as tables uint8 [R, V, 3, 256]."""
    levels = torch.arange(256, device=counts.device)
    low = torch.where(counts > 0, levels, 255).amin(3, keepdim=True)
    high = torch.where(counts > 0, levels, 0).amax(3, keepdim=True)
    scale = 255.0 / (high - low).clamp(min=1).double()
    wide = (levels * scale + -low * scale).trunc().clamp(0, 255)
    return torch.where(high > low, wide, levels).to(torch.uint8)


def _equalised(counts: Tensor) -> Tensor:
    """Pillow's equalize as tables uint8 [R, V, 3, 256]."""
    levels = torch.arange(256, device=counts.device)
    last = torch.where(counts > 0, levels, 0).amax(3, keepdim=True)
    step = (counts.sum(3, keepdim=True) - counts.gather(3, last)) // 255
    below = counts.cumsum(3) - counts
    flat = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step > 0, flat.clamp(max=255), levels).to(torch.uint8)


def _looked_up(x: Tensor, tables: Tensor) -> Tensor:
    """tables: uint8 [R, V or 1, 3 or 1, 256]."""
    levels = x.movedim(-1, 2)
    flat = tables.expand(*levels.shape[:3], 256).gather(3, levels.flatten(3).long())
    return flat.view(levels.shape).movedim(2, -1)


def _moved(x: Tensor, names: list[str], values: NDArray[np.float64]) -> Tensor:
    """Bilinear, pixel centres at halves; what lies outside the image is grey, with a hard edge as in Pillow."""
    size, views = x.shape[2], x.shape[1]
    matrices = np.array([augment.matrix(name, value, size) for name, value in zip(names, values.tolist(), strict=True)])
    by_row = _sent(matrices, x.device).view(-1, 2, 3)
    centres = torch.arange(size, device=x.device, dtype=torch.float64) + 0.5
    places = torch.stack([centres.expand(size, size), centres[:, None].expand(size, size),
                          torch.ones(size, size, device=x.device, dtype=torch.float64)])
    found = torch.einsum("rij,jhw->rhwi", by_row, places)  # [R, P, P, 2]: x and y in pixels
    inside = ((found >= 0) & (found < size)).all(-1)[:, None, :, :, None]
    grid = (2 * found / size - 1).float().repeat_interleave(views, 0)
    pixels = x.flatten(0, 1).movedim(-1, 1).float()
    taken = functional.grid_sample(pixels, grid, "bilinear", "border", align_corners=False)
    return torch.where(inside, (taken + 2e-3).to(torch.uint8).movedim(1, -1).view(x.shape), GREY)


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """A small array on the device; the host doesn't wait for its copy, as it would out of pageable memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
