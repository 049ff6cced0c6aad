"""The two cameras: `front` looks down at the whole table at an angle, `wrist` rides on the gripper.

640x480 with the fine detail of a real sensor, so that a JPEG weighs 60-100 KB as real ones do and decoding costs what
it costs in practice. All that does not change between images is cached (sprites, table tops, the table as the front
camera sees it, sensor noise); an image is then a copy, a few pastes and one addition. Drawn at a half or a quarter of
the size (`reduce`), without the noise that shrinking would average away, it costs a tenth: for models that shrink it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from lfhelpers.errors import LfError
from lfhelpers.workloads.vla.tabletop.scene import COLOURS, LIGHTS, Gripper, Scene, Thing, generator
from lfhelpers.workloads.vla.tabletop.sprites import DENSITY, FLOOR, MIDDLE, SPAN, sprite, table_top

CAMERAS = ("front", "wrist")
WIDTH, HEIGHT = 640, 480
QUALITY = 90
"""Of every JPEG; chroma is 4:2:0."""
NOISE = 4.0
"""Standard deviation of the sensor noise in 8-bit steps; it decides, with QUALITY, how large a JPEG is."""
_EYE = (-0.40, 0.95)
"""The front camera's place: y and z, in metres; it looks at the table's centre."""
_FRONT_FOCAL, _WRIST_FOCAL = 660.0, 480.0
_AHEAD, _DOWN = (float(value) for value in (-_EYE[0] / np.hypot(*_EYE), _EYE[1] / np.hypot(*_EYE)))
"""The front camera's direction; _DOWN is also the sine of the elevation from which it sees objects."""
_MOUNT = 0.12
"""The wrist camera's height above the fingertips, in metres; it looks straight down ..."""
_TILT = 0.95
"""... but shows objects from an elevation with this sine, so that their shapes can be told apart."""


class Spot(NamedTuple):
    """Where a camera sees a point: column and row in pixels, and how many pixels a metre measures there."""

    column: float
    row: float
    scale: float

    def over(self, reduce: int) -> Spot:
        """The same in a picture of a `reduce`-th of the width and height."""
        return Spot(self.column / reduce, self.row / reduce, self.scale / reduce)


def render(scene: Scene, gripper: Gripper, camera: str, reduce: int = 1) -> NDArray[np.uint8]:
    """uint8 [480, 640, 3]: `scene` with the gripper at `gripper`, seen by `front` or `wrist`, whatever is named.

    reduce: 2 or 4 draws at that part of the width and height, without sensor noise.
    """
    if camera not in CAMERAS:
        raise LfError(f"tabletop: there is no camera '{camera}'; take {' or '.join(CAMERAS)}.")
    picture = np.asarray((_front if camera == "front" else _wrist)(scene, gripper, reduce))
    return picture + _grain(scene, gripper, camera) if reduce == 1 else picture


def seen(gripper: Gripper, camera: str, place: tuple[float, float, float]) -> Spot:
    """Where a camera sees a point of the table's frame; it may lie outside of the picture."""
    return _from_front(*place) if camera == "front" else _from_wrist(gripper)(*place)


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """uint8 [480, 640, 3] as a JPEG of quality 90 with 4:2:0 chroma."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()


def _front(scene: Scene, gripper: Gripper, reduce: int) -> Image.Image:
    picture = _table_from_front(scene.look, reduce).point(_gains(scene.light))
    for thing in scene.things:
        _shadow(picture, _from_front(thing.x + 0.012, thing.y, 0.0).over(reduce), thing.radius * 1.25, _DOWN)
    _shadow(picture, _from_front(gripper.x, gripper.y, 0.0).over(reduce), 0.05, _DOWN)
    things = sorted(scene.things, key=lambda thing: -thing.y)  # what is nearer covers what is farther
    for thing in (thing for thing in things if thing.y >= gripper.y):
        _stand(picture, thing, reduce, scene.light)
    _arm(ImageDraw.Draw(picture), gripper, _gap(scene, gripper), reduce)
    for thing in (thing for thing in things if thing.y < gripper.y):
        _stand(picture, thing, reduce, scene.light)
    return picture


def _stand(picture: Image.Image, thing: Thing, reduce: int, light: int) -> None:
    """One object as the front camera sees it."""
    spot = _from_front(thing.x, thing.y, thing.z + MIDDLE * thing.radius).over(reduce)
    _thing(picture, thing, spot, _DOWN, light, reduce)


def _from_front(x: float, y: float, z: float) -> Spot:
    """Where the front camera sees a point of the table's frame."""
    along, below = y - _EYE[0], _EYE[1] - z
    scale = _FRONT_FOCAL / (along * _AHEAD + below * _DOWN)
    return Spot(WIDTH / 2 + x * scale, HEIGHT / 2 - (along * _DOWN - below * _AHEAD) * scale, scale)


def _wrist(scene: Scene, gripper: Gripper, reduce: int) -> Image.Image:
    spot = _from_wrist(gripper)
    wide, high = WIDTH / spot(0.0, 0.0, 0.0).scale, HEIGHT / spot(0.0, 0.0, 0.0).scale
    left, top = FLOOR[0] + gripper.x - wide / 2, FLOOR[1] - gripper.y - high / 2
    dense = DENSITY / reduce
    box = (left * dense, top * dense, (left + wide) * dense, (top + high) * dense)
    picture = _table_from_above(scene.look, reduce).resize((WIDTH // reduce, HEIGHT // reduce),
                                                           Image.Resampling.BILINEAR, box=box)
    picture = picture.point(_gains(scene.light))
    for thing in scene.things:
        _shadow(picture, spot(thing.x + 0.008, thing.y - 0.004, 0.0).over(reduce), thing.radius * 1.3, 1.0)
    for thing in sorted(scene.things, key=lambda thing: -thing.y):
        middle = spot(thing.x, thing.y, thing.z + MIDDLE * thing.radius / 2).over(reduce)
        _thing(picture, thing, middle, _TILT, scene.light, reduce)
    _fingers(ImageDraw.Draw(picture), _gap(scene, gripper), reduce)
    return picture


def _from_wrist(gripper: Gripper) -> Callable[[float, float, float], Spot]:
    """The wrist camera's view from `gripper`, as a function of a point of the table's frame."""
    def spot(x: float, y: float, z: float) -> Spot:
        scale = _WRIST_FOCAL / (gripper.z + _MOUNT - z)
        return Spot(WIDTH / 2 + (x - gripper.x) * scale, HEIGHT / 2 - (y - gripper.y) * scale, scale)
    return spot


def _thing(picture: Image.Image, thing: Thing, spot: Spot, sine: float, light: int, reduce: int) -> None:
    """Paste one object with its middle at `spot`."""
    side = round(2 * SPAN * thing.radius * spot.scale)
    left, top = round(spot.column - side / 2), round(spot.row - side / 2)
    if _visible(picture, left, top, side, side):
        shade, mask = (image.resize((side, side), Image.Resampling.BILINEAR)
                       for image in _sprite(thing.shape, thing.yaw, sine, reduce))
        picture.paste(Image.merge("RGB", [shade] * 3).point(_tint(thing.colour, light)), (left, top), mask)


def _shadow(picture: Image.Image, spot: Spot, radius: float, flat: float) -> None:
    wide, high = round(2 * radius * spot.scale), round(2 * radius * spot.scale * flat)
    left, top = round(spot.column) - wide // 2, round(spot.row) - high // 2
    if _visible(picture, left, top, wide, high):
        picture.paste((16, 16, 16), (left, top), _blot().resize((wide, high), Image.Resampling.BILINEAR))


def _visible(picture: Image.Image, left: int, top: int, wide: int, high: int) -> bool:
    """Whether any of a box, which has some size, lies within the picture."""
    return wide > 0 < high and -wide < left < picture.width and -high < top < picture.height


def _arm(draw: ImageDraw.ImageDraw, gripper: Gripper, gap: float, reduce: int) -> None:
    """Two fingers, the palm and the post that they hang from, as boxes seen from the front."""
    x, y, z = gripper.x, gripper.y, gripper.z
    _box(draw, (x - 0.013, x + 0.013), y, (z + 0.10, 0.62), (118, 122, 130), reduce)
    _box(draw, (x - 0.075, x + 0.075), y, (z + 0.075, z + 0.105), (70, 73, 80), reduce)
    for left in (x - gap - 0.013, x + gap):
        _box(draw, (left, left + 0.013), y, (max(z - 0.02, 0.0), z + 0.08), (38, 40, 46), reduce)


def _box(draw: ImageDraw.ImageDraw, x: tuple[float, float], y: float, z: tuple[float, float],
         colour: tuple[int, int, int], reduce: int) -> None:
    """An upright box: its front, and along its right a quarter in the shade."""
    for left, darker in ((x[0], 1.0), (x[1] - (x[1] - x[0]) / 4, 0.7)):
        corners = [_from_front(a, y, b).over(reduce)[:2]
                   for a, b in ((left, z[0]), (x[1], z[0]), (x[1], z[1]), (left, z[1]))]
        draw.polygon(corners, fill=tuple(round(value * darker) for value in colour))


def _fingers(draw: ImageDraw.ImageDraw, gap: float, reduce: int) -> None:
    """The two fingers as the wrist camera sees them: from the image's sides to the tips."""
    tip, root, middle = _WRIST_FOCAL / _MOUNT, _WRIST_FOCAL / 0.05, HEIGHT / 2 / reduce
    for side in (-1, 1):
        inner, outer = WIDTH / 2 + side * gap * tip, WIDTH / 2 + side * (gap + 0.05) * root
        inner, outer, near, far = inner / reduce, outer / reduce, 0.010 * tip / reduce, 0.010 * root / reduce
        draw.polygon([(inner, middle - near), (outer, middle - far), (outer, middle + far), (inner, middle + near)],
                     fill=(40, 42, 48))
        ends = sorted((inner, inner + side * 14 / reduce))
        draw.rectangle((ends[0], middle - near, ends[1], middle + near), fill=(92, 96, 104))


def _gap(scene: Scene, gripper: Gripper) -> float:
    """Half the distance between the fingers in metres; a held object keeps them apart."""
    return max(0.008 + 0.054 * gripper.opening, *(0.8 * thing.radius for thing in scene.things if thing.z > 0), 0.0)


@cache
def _gains(light: int) -> list[int]:
    """A table for Image.point; the result stays within 16..239, so that noise can be added without overflow."""
    return [min(239, max(16, round(value * (0.86 + 0.22 * light / LIGHTS)))) for value in range(256)] * 3


@cache
def _tint(colour: str, light: int) -> list[int]:
    """Shade to colour, for Image.point: dark below 200, towards white above it; within 16..239 like the table."""
    def value(channel: int, shade: int) -> float:
        matt = channel * min(shade, 200) / 200 * (0.9 + 0.12 * light / LIGHTS)
        return matt + (239 - matt) * 0.6 * max(0, shade - 200) / 55
    return [min(239, max(16, round(value(channel, shade)))) for channel in COLOURS[colour] for shade in range(256)]


@cache
def _blot() -> Image.Image:
    """A soft round spot, mode L."""
    x = (np.arange(64) - 31.5) / 32
    distance = np.sqrt(x[None] ** 2 + x[:, None] ** 2)
    return Image.fromarray((np.clip(1.6 * (1.0 - distance), 0.0, 1.0) * 130).astype(np.uint8))


@cache
def _sprite(shape: str, yaw: int, sine: float, reduce: int) -> tuple[Image.Image, Image.Image]:
    shade, mask = sprite(shape, yaw, sine)
    return (shade, mask) if reduce == 1 else (shade.reduce(reduce), mask.reduce(reduce))


@cache
def _table_from_above(look: int, reduce: int) -> Image.Image:
    return table_top(look) if reduce == 1 else table_top(look).reduce(reduce)


@cache
def _table_from_front(look: int, reduce: int = 1) -> Image.Image:
    """The empty table as the front camera sees it: a perspective warp of the picture from above.

    The ray through pixel (c, r) meets the table at x = _EYE[1] * across / fall, y = _EYE[0] + _EYE[1] * along / fall;
    across, along and fall are linear in (c, r, 1).
    """
    if reduce > 1:
        return _table_from_front(look).reduce(reduce)
    across = np.array([1.0, 0.0, -WIDTH / 2])
    along = np.array([0.0, -_DOWN, _FRONT_FOCAL * _AHEAD + _DOWN * HEIGHT / 2])
    fall = np.array([0.0, _AHEAD, _FRONT_FOCAL * _DOWN - _AHEAD * HEIGHT / 2])
    column = DENSITY * (FLOOR[0] * fall + _EYE[1] * across)
    row = DENSITY * ((FLOOR[1] - _EYE[0]) * fall - _EYE[1] * along)
    numbers = (np.concatenate([column, row, fall[:2]]) / fall[2]).tolist()
    return table_top(look).transform((WIDTH, HEIGHT), Image.Transform.PERSPECTIVE, numbers, Image.Resampling.BICUBIC)


@cache
def _sensor() -> NDArray[np.uint8]:
    """Noise of a camera sensor, [960, 1280, 3], within -16..16 in two's complement."""
    draw = generator(0, 0, stream=8)
    values = draw.normal(0.0, NOISE, (960, 1280, 1)) + draw.normal(0.0, NOISE / 3, (960, 1280, 3))
    return values.clip(-16, 16).round().astype(np.int8).view(np.uint8)


def _grain(scene: Scene, gripper: Gripper, camera: str) -> NDArray[np.uint8]:
    """This image's own window of the noise: another one once the gripper has moved."""
    place = zip(gripper, (31, 1009, 65537, 257), strict=True)
    mixed = scene.noise + 7919 * CAMERAS.index(camera) + sum(round(value * 1e4) * factor for value, factor in place)
    row, column = mixed % 479, mixed // 479 % 639
    return _sensor()[row:row + HEIGHT, column:column + WIDTH]
