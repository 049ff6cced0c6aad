"""RandAugment and MixUp: the augmentation that Pillow has and DALI has not, drawn from (seed, epoch, sample) alone.

RandAugment (Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2020)
does a few random operations of one strength; MixUp (Zhang et al., "mixup: Beyond empirical risk minimization", 2018)
blends each sample with another one. What is drawn is decided here, in numpy, for a whole batch at once; the pixels are
made here by Pillow, a sample at a time on CPU cores, or in `augment_device`, a batch at a time on the training device.
Both make the same pixels, but for operations that move them, which differ by one level of 255 at most. The device does
it with far less work; cores do it without taking any of the device's time, as long as there are enough of them.

torch and scipy are not imported here: second-level processes load this file and must start at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from lfhelpers.data import draws

Pixels = NDArray[np.uint8]

OPERATIONS = ("identity", "auto_contrast", "equalize", "solarize", "posterize", "brightness", "contrast", "colour",
              "sharpness", "rotate", "shear_x", "shear_y", "translate_x", "translate_y")
MOVING = OPERATIONS[9:]  # those that move pixels
STRONGEST = 30  # strengths are 0..30, as in the paper
GREY = 128  # what is moved in from outside the image
_ENHANCE, _ROTATE, _SHEAR, _TRANSLATE, _POSTERIZE = 0.9, 30.0, 0.3, 150 / 331, 4.0  # change at the strongest


class Operations(NamedTuple):
    """What to do with each sample of a batch, for all of its views."""

    kinds: NDArray[np.int64]
    """[B, n] places in OPERATIONS."""
    values: NDArray[np.float64]
    """[B, n]: degrees, threshold, bits, blending factor, shear, or share of the side."""


def choose(seed: int, epoch: int, ids: NDArray[np.int64], count: int, strength: int) -> Operations:
    """`count` operations for each sample, each one of the 14 with equal chance, in both directions alike."""
    drawn = np.stack([draws.uniform(seed, epoch, ids, draws.RAND_AUGMENT + (layer << 8)) for layer in range(count)], 1)
    kinds = (drawn[..., 0] * len(OPERATIONS)).astype(np.int64)
    signs = np.where(drawn[..., 1] < 0.5, -1.0, 1.0)
    base, change = _strengths(strength)
    return Operations(kinds, base[kinds] + np.where(_SIGNED[kinds], signs, 1.0) * change[kinds])


def on_pillow(views: Pixels, kinds: NDArray[np.int64], values: NDArray[np.float64]) -> Pixels:
    """One sample's views, uint8 [P, P, 3] or [V, P, P, 3], after its operations: kinds and values [n] as in choose."""
    done = np.empty_like(views)
    for source, place in zip(views.reshape(-1, *views.shape[-3:]), done.reshape(-1, *views.shape[-3:]), strict=True):
        image = Image.fromarray(source)
        for kind, value in zip(kinds.tolist(), values.tolist(), strict=True):
            image = _operate(image, OPERATIONS[kind], value)
        place[:] = image
    return done


def share(alpha: float, seed: int, epoch: int, step: int, micro: int) -> float:
    """MixUp's weight of the batch's own samples, from Beta(alpha, alpha): one for a micro-batch, alike on all ranks."""
    from scipy.special import betaincinv

    place = np.array([step + (micro << 32)], dtype=np.int64)
    return float(betaincinv(alpha, alpha, draws.uniform(seed, epoch, place, draws.MIXUP)[0, 0]))


def partners(samples: int) -> NDArray[np.int64]:
    """Each row's partner in MixUp, int64 [samples]: the row before it, as in a batch that is rolled by one."""
    return np.roll(np.arange(samples), 1)


def mix(images: Pixels, weight: float) -> Pixels:
    """Images [B, ...], each blended with its partner's: weight x own + (1 - weight) x partner, rounded down as Pillow.

    One call of Pillow's blend for the whole batch takes two thirds of what numpy needs in 16 bits.
    """
    own, others = (Image.fromarray(batch.reshape(len(images), -1)) for batch in (images, images[partners(len(images))]))
    return np.asarray(Image.blend(own, others, 1 - weight)).reshape(images.shape)


def matrix(kind: str, value: float, size: int) -> tuple[float, float, float, float, float, float]:
    """Of a moving operation, [2, 3] by rows: where in the image, in pixels, each place of the result comes from."""
    if kind == "rotate":
        turn = -np.deg2rad(value)
        cos, sin, middle = float(np.cos(turn)), float(np.sin(turn)), size / 2
        return cos, sin, middle * (1 - cos - sin), -sin, cos, middle * (1 - cos + sin)
    across, down = value * (kind == "shear_x"), value * (kind == "shear_y")
    return 1.0, across, value * size * (kind == "translate_x"), down, 1.0, value * size * (kind == "translate_y")


def table(kind: str, value: float) -> Pixels:
    """Of an operation that looks at nothing but the level itself: its result for each of the 256 levels."""
    levels = np.arange(256)
    if kind == "solarize":
        return np.where(levels < value, levels, 255 - levels).astype(np.uint8)
    if kind == "posterize":
        return (levels & ~(2 ** (8 - int(value)) - 1)).astype(np.uint8)
    assert kind == "brightness", kind
    return np.clip(np.float32(value) * levels.astype(np.float32), 0, 255).astype(np.uint8)


def _strengths(strength: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(value at strength 0, largest change from it) of each operation; at 0 none but the first three does a thing."""
    part = strength / STRONGEST
    base = {"solarize": 256.0, "posterize": 8.0} | dict.fromkeys(("brightness", "contrast", "colour", "sharpness"), 1.0)
    change = {"solarize": -256.0 * part, "posterize": -round(_POSTERIZE * part), "rotate": _ROTATE * part,
              **dict.fromkeys(("brightness", "contrast", "colour", "sharpness"), _ENHANCE * part),
              **dict.fromkeys(("shear_x", "shear_y"), _SHEAR * part),
              **dict.fromkeys(("translate_x", "translate_y"), _TRANSLATE * part)}
    return (np.array([base.get(kind, 0.0) for kind in OPERATIONS]),
            np.array([float(change.get(kind, 0.0)) for kind in OPERATIONS]))


_SIGNED = np.array([kind not in ("solarize", "posterize") for kind in OPERATIONS])
_SIMPLE: dict[str, Callable[[Image.Image], Image.Image]] = {
    "auto_contrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}
_ENHANCERS: dict[str, Any] = {
    "contrast": ImageEnhance.Contrast, "colour": ImageEnhance.Color, "sharpness": ImageEnhance.Sharpness}


def _operate(image: Image.Image, kind: str, value: float) -> Image.Image:
    if kind == "identity":
        return image
    if kind in _SIMPLE:
        return _SIMPLE[kind](image)
    if kind in _ENHANCERS:
        return _ENHANCERS[kind](image).enhance(value)
    if kind in MOVING:
        return image.transform(image.size, Image.Transform.AFFINE, matrix(kind, value, image.width),
                               Image.Resampling.BILINEAR, fillcolor=(GREY, GREY, GREY))
    return image.point(table(kind, value).tolist() * 3)
