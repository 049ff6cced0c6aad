"""Augmentation draws that depend on (seed, epoch, sample, operation) and on nothing else.

A counter-based generator has no state to inherit, so forked workers cannot repeat each other's draws and a resumed
run cannot lose its place. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) runs
here over a whole batch at once in numpy: about 0.2 ms a batch, where a generator object for each draw of each sample
would cost 15 us apiece. All colour changes become one 3 x 4 matrix, the same that DALI's color_twist applies, so a
GPU engine can follow it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Operations; a new one takes the next number, so that old draws stay what they were.
CROP, JITTER, RAND_AUGMENT, MIXUP = 0, 1, 2, 3
FRACTION = 0.95
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.3, 0.4, 0.5, 0.08  # largest change each; hue in turns
GREY = 128.0

_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_RGB = np.linalg.inv(_YIQ)
_MASK = np.uint64(0xFFFFFFFF)


class Draw(NamedTuple):
    """One sample's draw, for all of its views: where the crop lies (0..1 of the free room, x and y), and colours."""

    offset: tuple[float, float]
    matrix: NDArray[np.float64] | None
    """[3, 4], out = matrix[:, :3] @ rgb + matrix[:, 3] on 0..255; None: colours stay."""


CENTRE = Draw((0.5, 0.5), None)


def draw(seed: int, epoch: int, ids: NDArray[np.int64]) -> list[Draw]:
    """A random draw for each sample of a batch."""
    places = uniform(seed, epoch, ids, CROP)
    colours = colour_matrices(uniform(seed, epoch, ids, JITTER))
    return [Draw((float(x), float(y)), matrix) for (x, y, _, _), matrix in zip(places, colours, strict=True)]


def crop_box(offset: tuple[float, float], width: int, height: int) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) in pixels of a crop of 0.95 of each side; an offset of 0.5 is the centre."""
    wide, high = round(FRACTION * width), round(FRACTION * height)
    left, top = int(offset[0] * (width - wide + 1)), int(offset[1] * (height - high + 1))
    return left, top, left + wide, top + high


def colour_matrices(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """[B, 4] in 0..1 to [B, 3, 4]: hue turns and saturation scales chroma in YIQ; contrast about 128; brightness."""
    brightness, contrast, saturation = (1 + (2 * uniforms[:, i] - 1) * limit
                                        for i, limit in enumerate((BRIGHTNESS, CONTRAST, SATURATION)))
    angle = (2 * uniforms[:, 3] - 1) * HUE * 2 * np.pi
    chroma = np.zeros((len(uniforms), 3, 3))
    chroma[:, 0, 0] = 1
    chroma[:, 1, 1] = chroma[:, 2, 2] = saturation * np.cos(angle)
    chroma[:, 1, 2] = saturation * np.sin(angle)
    chroma[:, 2, 1] = -chroma[:, 1, 2]
    linear = (brightness * contrast)[:, None, None] * (_RGB @ chroma @ _YIQ)
    offset = brightness * GREY * (1 - contrast)
    return np.concatenate([linear, np.broadcast_to(offset[:, None, None], (len(uniforms), 3, 1))], axis=2)


def uniform(seed: int, epoch: int, ids: NDArray[np.int64], operation: int) -> NDArray[np.float64]:
    """[B, 4] uniform in 0..1 (1 left out), each row a function of (seed, epoch, its id, operation) alone."""
    wide = ids.astype(np.uint64)
    counter = np.stack([wide & _MASK, wide >> np.uint64(32), np.full_like(wide, epoch), np.full_like(wide, operation)])
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)).T / 2.0**32


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10 of each column of `counter` [4, n]; values below 2**32 in 64-bit words, so that products fit."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = _high(right) ^ c1 ^ np.uint64(k0), right & _MASK
        c2, c3 = _high(left) ^ c3 ^ np.uint64(k1), left & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def _high(words: NDArray[Any]) -> NDArray[np.uint64]:
    return words >> np.uint64(32)
