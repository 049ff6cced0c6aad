"""The expensive pictures, made once a process: one shaded drawing per shape and turn, and the table tops.

Ray casting every object of every image would cost tens of milliseconds; a sprite that is scaled and tinted costs a
tenth of one. The price: perspective inside an object is that of the image's middle. Shapes are implicit functions,
negative inside, in units of the object's radius, so a new shape is one more function.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lfhelpers.workloads.vla.tabletop.scene import LOOKS, YAWS, generator

Array = NDArray[np.float32]

SPAN = 1.9
"""Half of a sprite's width, in radii of the object."""
PIXELS = 240
"""A sprite's width and height."""
MIDDLE = 0.8
"""Height of the point that a sprite's centre shows, in radii above the foot."""
FLOOR = (0.62, 0.50)
"""Half the extent of a table top's picture, in metres: the table and the floor around it."""
TABLE = (0.42, 0.31)
"""Half the extent of the table itself."""
DENSITY = 1100
"""Pixels a metre of a table top's picture."""
_LIGHT = np.array([-0.45, 0.35, 0.82], dtype=np.float32)
_WOODS = (((150, 112, 74), (196, 158, 112)), ((84, 58, 42), (124, 90, 66)), ((168, 140, 108), (206, 182, 150)),
          ((112, 84, 66), (150, 120, 98)))
_CLOTHS = (((96, 98, 102), (128, 130, 134)), ((150, 144, 132), (184, 178, 166)), ((52, 56, 64), (84, 88, 96)),
           ((118, 110, 108), (152, 144, 140)))


def _block(x: Array, y: Array, z: Array) -> Array:
    return np.maximum(np.maximum(np.abs(x), np.abs(y)) - 0.82, np.abs(z - 0.75) - 0.75)


def _ball(x: Array, y: Array, z: Array) -> Array:
    return np.sqrt(x * x + y * y + (z - 0.95) ** 2) - 0.95


def _cylinder(x: Array, y: Array, z: Array) -> Array:
    return np.maximum(np.sqrt(x * x + y * y) - 0.82, np.abs(z - 0.8) - 0.8)


def _cone(x: Array, y: Array, z: Array) -> Array:
    return np.maximum((np.sqrt(x * x + y * y) - 1.0 + 0.55 * z) * 0.876, -z)


def _star(x: Array, y: Array, z: Array) -> Array:
    """A five-pointed prism; the plane is folded onto half a point (Inigo Quilez, 2D distance functions)."""
    a, b = np.abs(x), y + 0.05
    for kx, ky in ((0.809017, -0.587785), (-0.809017, -0.587785)):
        fold = 2.0 * np.maximum(kx * a + ky * b, 0.0)
        a, b = a - fold * kx, b - fold * ky
    flank = 0.854 * np.abs(a) + 0.520 * (b - 1.2)
    return np.maximum(flank, np.abs(z - 0.4) - 0.4)


_SHAPES = {"block": _block, "ball": _ball, "cylinder": _cylinder, "cone": _cone, "star": _star}
_TURNS = {"block": 90.0, "star": 72.0}
"""Degrees after which a shape looks the same again; the others always do."""


@lru_cache(maxsize=None)
def sprite(shape: str, yaw: int, sine: float) -> tuple[Image.Image, Image.Image]:
    """(shade, mask), each mode L, PIXELS square: `shape` seen from an elevation with the given sine, unit radius."""
    step = 2.0 * SPAN / PIXELS
    across, up = np.meshgrid((np.arange(PIXELS, dtype=np.float32) + 0.5) * step - SPAN,
                             SPAN - (np.arange(PIXELS, dtype=np.float32) + 0.5) * step)
    cosine = float(np.sqrt(1.0 - sine * sine))
    angle = np.deg2rad(_TURNS.get(shape, 0.0) * yaw / YAWS)
    c, s = float(np.cos(angle)), float(np.sin(angle))

    def inside(z: Array, dx: float = 0.0, dy: float = 0.0, dz: float = 0.0) -> Array:
        """The implicit function where the line of sight through each pixel passes height z, moved by (dx, dy, dz)."""
        x, y = across + dx, (up - (z - MIDDLE) * cosine) / sine + dy
        return _SHAPES[shape](c * x + s * y, c * y - s * x, z + dz)

    nearest, height = np.full_like(across, np.inf), np.zeros_like(across)
    for z in np.linspace(2.0, 0.0, 81, dtype=np.float32):  # downwards: the first height inside is the visible one
        value = inside(np.float32(z) * np.ones(1, dtype=np.float32))
        closer = (nearest > 0) & (value < nearest)
        nearest, height = np.where(closer, value, nearest), np.where(closer, z, height)
    e = 0.03
    normal = np.stack([inside(height, dx=e) - inside(height, dx=-e), inside(height, dy=e) - inside(height, dy=-e),
                       inside(height, dz=e) - inside(height, dz=-e)])
    normal /= np.maximum(np.sqrt((normal * normal).sum(0)), 1e-6)
    facing = np.maximum((normal * (_LIGHT / np.sqrt((_LIGHT**2).sum()))[:, None, None]).sum(0), 0.0)
    shade = 70.0 + 125.0 * facing + 60.0 * facing**24
    mask = np.clip(0.5 - nearest / step, 0.0, 1.0) * 255.0
    return (Image.fromarray(shade.clip(0, 255).astype(np.uint8)), Image.fromarray(mask.astype(np.uint8)))


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
