"""The expensive pictures, made once a process: one shaded drawing per shape and turn, and the table tops.

Ray casting every object of every image would cost tens of milliseconds; a sprite that is scaled and tinted costs a
tenth of one. The price: perspective inside an object is that of the image's middle. Shapes are implicit functions,
negative inside, in units of the object's radius, so a new shape is one more function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lfhelpers.workloads.vla.tabletop.scene import LOOKS, YAWS, generator

Array = NDArray[np.floating]

SPAN = 1.6
"""Half of a sprite's width, in radii of the object."""
PIXELS = 216
"""A sprite's width and height."""
MIDDLE = 0.8
"""Height of the point that a sprite's centre shows, in radii above the foot."""
FLOOR = (0.62, 0.50)
"""Half the extent of a table top's picture, in metres: the table and the floor around it."""
TABLE = (0.42, 0.31)
"""Half the extent of the table itself."""
DENSITY = 1100
"""Pixels a metre of a table top's picture."""
_LIGHT = np.array([-0.451, 0.351, 0.822], dtype=np.float32)
"""Towards the light, from the left and above."""
_WOODS = (((150, 112, 74), (196, 158, 112)), ((84, 58, 42), (124, 90, 66)), ((168, 140, 108), (206, 182, 150)),
          ((112, 84, 66), (150, 120, 98)))
_CLOTHS = (((96, 98, 102), (128, 130, 134)), ((150, 144, 132), (184, 178, 166)), ((52, 56, 64), (84, 88, 96)),
           ((118, 110, 108), (152, 144, 140)))


def _block(x: Array, y: Array, z: Array) -> Array:
    return np.maximum(np.maximum(np.abs(x), np.abs(y)) - 0.82, z - 1.5)


def _ball(x: Array, y: Array, z: Array) -> Array:
    return np.sqrt(x * x + y * y + (z - 0.95) ** 2) - 0.95


def _cylinder(x: Array, y: Array, z: Array) -> Array:
    return np.maximum(np.sqrt(x * x + y * y) - 0.82, z - 1.6)


def _pyramid(x: Array, y: Array, z: Array) -> Array:
    return (np.maximum(np.abs(x), np.abs(y)) - 0.95 + 0.6 * z) * 0.857


def _star(x: Array, y: Array, z: Array) -> Array:
    """A five-pointed prism; the plane is folded onto half a point (Inigo Quilez, 2D distance functions)."""
    a, b = np.abs(x), y + 0.05
    for kx, ky in ((0.809017, -0.587785), (-0.809017, -0.587785)):
        fold = 2.0 * np.maximum(kx * a + ky * b, 0.0)
        a, b = a - fold * kx, b - fold * ky
    return np.maximum(0.854 * np.abs(a) + 0.520 * (b - 1.2), z - 0.8)


_SHAPES = {"block": _block, "ball": _ball, "cylinder": _cylinder, "pyramid": _pyramid, "star": _star}
_TURNS = {"block": 90.0, "pyramid": 90.0, "star": 72.0}
"""Degrees after which a shape looks the same again; the others always do."""


@cache
def sprite(shape: str, yaw: int, sine: float) -> tuple[Image.Image, Image.Image]:
    """(shade, mask), each mode L, PIXELS square: `shape` of radius 1 seen from an elevation with the given sine."""
    step = 2.0 * SPAN / PIXELS
    line = (np.arange(PIXELS, dtype=np.float32) + 0.5) * step - SPAN
    across, up = np.meshgrid(line, -line)
    cosine = float(np.sqrt(1.0 - sine * sine))
    angle = np.deg2rad(_TURNS.get(shape, 0.0) * yaw / YAWS)
    c, s = float(np.cos(angle)), float(np.sin(angle))

    def solid(height: Array, moved: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Array:
        """The shape's function where the line of sight through each pixel passes `height`, plus `moved`."""
        x, y = across + moved[0], (up - (height - MIDDLE) * cosine) / sine + moved[1]
        return _SHAPES[shape](c * x + s * y, c * y - s * x, height + moved[2])

    height, nearest = _first_hit(solid)
    sides = [np.roll([0.02, 0.0, 0.0], axis) for axis in range(3)]
    normal = np.stack([solid(height, tuple(side)) - solid(height, tuple(-side)) for side in sides])
    normal /= np.maximum(np.sqrt((normal * normal).sum(0)), 1e-6)
    facing = np.maximum((normal * _LIGHT[:, None, None]).sum(0), 0.0)
    shade = 62.0 + 160.0 * facing + 40.0 * facing**24
    mask = np.clip(1.0 - nearest / step, 0.0, 1.0) * 255.0  # softened outside of the outline
    return Image.fromarray(shade.clip(0, 255).astype(np.uint8)), Image.fromarray(mask.astype(np.uint8))


def _first_hit(solid: Callable[[Array], Array]) -> tuple[Array, Array]:
    """The height at which each line of sight enters the solid, coming from above, and its least value on the way."""
    top, step = 2.0, 0.05
    nearest = solid(np.full((PIXELS, PIXELS), top, dtype=np.float32))
    height = np.zeros_like(nearest)
    for z in np.arange(top - step, -1e-6, -step, dtype=np.float32):
        value = solid(np.full_like(nearest, z))
        height = np.where((nearest > 0) & (value < nearest), z, height)
        nearest = np.where(nearest > 0, np.minimum(value, nearest), nearest)
    outside, inside = height + np.float32(step), height
    for _ in range(8):
        middle = (outside + inside) / 2
        hit = solid(middle) < 0
        outside, inside = np.where(hit, outside, middle), np.where(hit, middle, inside)
    return inside, nearest


@lru_cache(maxsize=LOOKS)
def table_top(look: int) -> Image.Image:
    """The table and the floor around it from straight above, RGB, DENSITY pixels a metre, 2 x FLOOR metres."""
    width, height = (round(2 * half * DENSITY) for half in FLOOR)
    draw = generator(0, look, stream=9)
    palette = (_WOODS if wooden(look) else _CLOTHS)[look // 2 % 4]
    value = (_grain if wooden(look) else _weave)(draw, width, height)
    dark, light = (np.array(colour, dtype=np.float32) for colour in palette)
    picture = dark + (light - dark) * value[..., None]
    x = np.abs(np.arange(width) + 0.5 - width / 2) / DENSITY - TABLE[0]
    y = np.abs(np.arange(height) + 0.5 - height / 2) / DENSITY - TABLE[1]
    outside = np.maximum(x[None, :], y[:, None])
    picture *= np.where(outside > -0.008, 0.62, 1.0)[..., None]  # a bevelled edge
    floor = (44.0 + 16.0 * _noise(draw, width, height, 24, 20))[..., None] * np.array([1.0, 1.02, 1.08])
    picture = np.where(outside[..., None] > 0.0, floor * np.clip(0.45 + outside * 9.0, 0.0, 1.0)[..., None], picture)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def wooden(look: int) -> bool:
    """Whether the table top is bare wood; otherwise it is covered with cloth."""
    return look % 2 == 0


def _grain(draw: np.random.Generator, width: int, height: int) -> Array:
    """Boards with grain along x, 0..1."""
    value = (0.45 * _noise(draw, width, height, 5, 70) + 0.35 * _noise(draw, width, height, 14, 300)
             + 0.35 * _noise(draw, width, height, 60, 700) - 0.08)
    board = np.arange(height) // (height // 7)
    value += draw.uniform(-0.16, 0.16, board.max() + 1)[board][:, None].astype(np.float32)
    value[np.arange(height) % (height // 7) < 3] -= 0.45
    return value


def _weave(draw: np.random.Generator, width: int, height: int) -> Array:
    """Crossing threads of four pixels, with folds and fluff, 0..1."""
    x, y = np.arange(width)[None, :], np.arange(height)[:, None]
    over = ((x // 4 + y // 4) % 2).astype(np.float32)
    thread = np.where(over > 0, np.abs(x % 4 - 1.5), np.abs(y % 4 - 1.5)).astype(np.float32)
    return (0.5 * _noise(draw, width, height, 7, 6) + 0.4 * _noise(draw, width, height, 320, 260)
            + 0.25 * over - 0.14 * thread + 0.1).astype(np.float32)


def _noise(draw: np.random.Generator, width: int, height: int, columns: int, rows: int) -> Array:
    """Smooth noise of the given number of bumps, 0..1; Pillow's integer resize gives the same bytes everywhere."""
    coarse = Image.fromarray(draw.integers(0, 256, (rows, columns), dtype=np.uint8))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 255.0
