"""The two cameras: `front` looks down at the whole table at an angle, `wrist` rides on the gripper.

640x480 with the fine detail of a real sensor, so that a JPEG weighs 60-100 KB as real ones do and decoding costs what
it costs in practice. All that does not change between images is cached (sprites, table tops, the table as the front
camera sees it, sensor noise); an image is then a copy, a few pastes and one addition.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from lfhelpers.errors import LfError
from lfhelpers.workloads.vla.tabletop.scene import COLOURS, Gripper, Scene, Thing, generator
from lfhelpers.workloads.vla.tabletop.sprites import DENSITY, FLOOR, MIDDLE, SPAN, sprite, table_top

CAMERAS = ("front", "wrist")
WIDTH, HEIGHT = 640, 480
JPEG = {"quality": 90, "subsampling": "4:2:0"}
_EYE = (-0.40, 0.95)
"""The front camera's place: y and z, in metres; it looks at the table's centre."""
_FOCAL = {"front": 660.0, "wrist": 480.0}
_MOUNT = 0.12
"""The wrist camera's height above the fingertips, in metres."""
_TILT = 0.95
"""Sine of the elevation at which the wrist camera shows objects: slightly from the side, so that shapes are told apart."""
_DISTANCE = float(np.hypot(*_EYE))
_FORWARD = (-_EYE[0] / _DISTANCE, -_EYE[1] / _DISTANCE)
_NOISE = 3.4
"""Sensor noise, standard deviation in 8-bit steps."""

Point = tuple[float, float, float]


def render(scene: Scene, gripper: Gripper, camera: str) -> NDArray[np.uint8]:
    """uint8 [480, 640, 3]: `scene` with the gripper at `gripper`, seen by `front` or `wrist`. The target plays no part."""
    if camera not in CAMERAS:
        raise LfError(f"tabletop: there is no camera '{camera}'; take {' or '.join(CAMERAS)}.")
    picture = (_front if camera == "front" else _wrist)(scene, gripper)
    return np.asarray(picture) + _grain(scene, gripper, camera)


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """`image` as a JPEG of quality 90 with 4:2:0 chroma."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **JPEG)
    return file.getvalue()


def project(point: Point) -> tuple[float, float, float]:
    """Where the front camera sees a point of the table's frame: column, row, and pixels a metre there."""
    x, y, z = point[0], point[1] - _EYE[0], point[2] - _EYE[1]
    forward, up = y * _FORWARD[0] + z * _FORWARD[1], -y * _FORWARD[1] + z * _FORWARD[0]
    scale = _FOCAL["front"] / forward
    return WIDTH / 2 + x * scale, HEIGHT / 2 - up * scale, scale


def _front(scene: Scene, gripper: Gripper) -> Image.Image:
    picture = _lit(_table_from_front(scene.look), scene.light)
    for thing in scene.things:
        _shadow(picture, *project((thing.x + 0.012, thing.y, 0.0)), thing.radius * 1.25, -_FORWARD[1])
    _shadow(picture, *project((gripper.x, gripper.y, 0.0)), 0.05, -_FORWARD[1])
    behind = sorted((thing for thing in scene.things if thing.y >= gripper.y), key=lambda thing: -thing.y)
    before = sorted((thing for thing in scene.things if thing.y < gripper.y), key=lambda thing: -thing.y)
    for thing in behind:
        _thing(picture, thing, *project((thing.x, thing.y, thing.z + MIDDLE * thing.radius)), -_FORWARD[1], scene.light)
    _arm(picture, gripper, _gap(scene, gripper))
    for thing in before:
        _thing(picture, thing, *project((thing.x, thing.y, thing.z + MIDDLE * thing.radius)), -_FORWARD[1], scene.light)
    return picture


def _wrist(scene: Scene, gripper: Gripper) -> Image.Image:
    def place(x: float, y: float, z: float) -> tuple[float, float, float]:
        scale = _FOCAL["wrist"] / (gripper.z + _MOUNT - z)
        return WIDTH / 2 + (x - gripper.x) * scale, HEIGHT / 2 - (y - gripper.y) * scale, scale

    half = [pixels / 2 / place(0.0, 0.0, 0.0)[2] for pixels in (WIDTH, HEIGHT)]
    left, top = (FLOOR[0] + gripper.x - half[0]) * DENSITY, (FLOOR[1] - gripper.y - half[1]) * DENSITY
    box = (left, top, left + 2 * half[0] * DENSITY, top + 2 * half[1] * DENSITY)
    picture = table_top(scene.look).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR, box=box)
    picture = _lit(picture, scene.light)
    for thing in scene.things:
        _shadow(picture, *place(thing.x + 0.008, thing.y - 0.004, 0.0), thing.radius * 1.3, 1.0)
    for thing in sorted(scene.things, key=lambda thing: -thing.y):
        _thing(picture, thing, *place(thing.x, thing.y, thing.z + MIDDLE * thing.radius * 0.5), _TILT, scene.light)
    _fingers(picture, _gap(scene, gripper))
    return picture


def _thing(picture: Image.Image, thing: Thing, column: float, row: float, scale: float, sine: float, light: float) -> None:
    """Paste one object, its middle at (column, row) where a metre measures `scale` pixels."""
    half = SPAN * thing.radius * scale
    box = tuple(round(value) for value in (column - half, row - half, column + half, row + half))
    if box[2] <= 0 or box[3] <= 0 or box[0] >= WIDTH or box[1] >= HEIGHT:
        return
    shade, mask = (image.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BILINEAR)
                   for image in sprite(thing.shape, thing.yaw, sine))
    picture.paste(Image.merge("RGB", [shade] * 3).point(_tint(thing.colour, light)), box[:2], mask)


def _shadow(picture: Image.Image, column: float, row: float, scale: float, radius: float, flat: float) -> None:
    wide, high = max(2, round(2 * radius * scale)), max(2, round(2 * radius * scale * flat))
    mask = _blot().resize((wide, high), Image.Resampling.BILINEAR)
    picture.paste((0, 0, 0), (round(column) - wide // 2, round(row) - high // 2), mask)


def _arm(picture: Image.Image, gripper: Gripper, gap: float) -> None:
    """Two fingers, the palm and the post that they hang from, as boxes seen from the front."""
    draw = ImageDraw.Draw(picture)
    x, y, z = gripper.x, gripper.y, gripper.z
    foot = max(z - 0.02, 0.0)
    _box(draw, (x - 0.013, x + 0.013), y, (z + 0.10, 0.62), (118, 122, 130), (82, 85, 92))
    _box(draw, (x - 0.075, x + 0.075), y, (z + 0.075, z + 0.105), (70, 73, 80), (46, 48, 54))
    for side in (-1, 1):
        inner, outer = sorted((x + side * gap, x + side * (gap + 0.013)))
        _box(draw, (inner, outer), y, (foot, z + 0.08), (38, 40, 46), (24, 25, 30))


def _box(draw: ImageDraw.ImageDraw, x: tuple[float, float], y: float, z: tuple[float, float],
         front: tuple[int, int, int], side: tuple[int, int, int]) -> None:
    """An upright box: its front, and a strip of shade along its right."""
    low, high = project((x[0], y, z[0])), project((x[0], y, z[1]))
    low_right, high_right = project((x[1], y, z[0])), project((x[1], y, z[1]))
    draw.polygon([low[:2], low_right[:2], high_right[:2], high[:2]], fill=front)
    share = 0.7
    middle_low = low[0] + share * (low_right[0] - low[0])
    middle_high = high[0] + share * (high_right[0] - high[0])
    draw.polygon([(middle_low, low[1]), low_right[:2], high_right[:2], (middle_high, high[1])], fill=side)


def _fingers(picture: Image.Image, gap: float) -> None:
    """The two fingers as the wrist camera sees them: from the image's sides to the tips."""
    draw = ImageDraw.Draw(picture)
    tip, root = _FOCAL["wrist"] / _MOUNT, _FOCAL["wrist"] / 0.05
    for side in (-1, 1):
        inner, outer = WIDTH / 2 + side * gap * tip, WIDTH / 2 + side * (gap + 0.05) * root
        high, low = 0.010 * tip, 0.010 * root
        draw.polygon([(inner, 240 - high), (outer, 240 - low), (outer, 240 + low), (inner, 240 + high)], fill=(40, 42, 48))
        pad = inner + side * 14
        draw.polygon([(inner, 240 - high), (pad, 240 - high), (pad, 240 + high), (inner, 240 + high)], fill=(92, 96, 104))


def _gap(scene: Scene, gripper: Gripper) -> float:
    """Half the distance between the fingers in metres; a held object keeps them apart."""
    held = [0.8 * thing.radius for thing in scene.things if thing.z > 0]
    return max(0.008 + 0.054 * gripper.opening, *held, 0.0)


def _lit(picture: Image.Image, light: float) -> Image.Image:
    """A copy under the scene's light."""
    return picture.point(_gains(round(light * 31)))


@lru_cache(maxsize=32)
def _gains(step: int) -> list[int]:
    """A table for Image.point; the result stays within 16..239, so that noise can be added without overflow."""
    return [min(239, max(16, round(value * (0.86 + 0.22 * step / 31)))) for value in range(256)] * 3


@lru_cache(maxsize=512)
def _tint(colour: str, light: float) -> list[int]:
    """Shade to colour, for Image.point: dark below 195, towards white above it."""
    rows: list[int] = []
    for channel in COLOURS[colour]:
        for shade in range(256):
            gloss = max(0, shade - 195) / 60 * 0.75
            value = channel * min(shade, 195) / 195 * (0.9 + 0.12 * light)
            rows.append(min(239, max(16, round(value + (239 - value) * gloss))))
    return rows


@lru_cache(maxsize=1)
def _blot() -> Image.Image:
    """A soft round spot, mode L."""
    x = (np.arange(64, dtype=np.float32) - 31.5) / 32
    distance = np.sqrt(x[None] ** 2 + x[:, None] ** 2)
    return Image.fromarray((np.clip(1.6 * (1.0 - distance), 0.0, 1.0) * 130).astype(np.uint8))


@lru_cache(maxsize=None)
def _table_from_front(look: int) -> Image.Image:
    """The empty table as the front camera sees it: a perspective warp of the picture from above."""
    cx, cy = WIDTH / 2, HEIGHT / 2
    depth = (-_FORWARD[1] * _FOCAL["front"] - _FORWARD[0] * cy, _FORWARD[0])  # how fast a pixel's ray falls
    lift = _EYE[1]
    across = np.array([lift, 0.0, -lift * cx])
    along = np.array([0.0, -lift * -_FORWARD[1], lift * (_FORWARD[0] * _FOCAL["front"] + -_FORWARD[1] * cy)])
    fall = np.array([0.0, depth[1], depth[0]])
    u = DENSITY * (across + FLOOR[0] * fall)
    v = DENSITY * ((FLOOR[1] - _EYE[0]) * fall - along)
    rows = np.concatenate([u, v, fall[:2]]) / fall[2]
    warped = table_top(look).transform((WIDTH, HEIGHT), Image.Transform.PERSPECTIVE, tuple(rows), Image.Resampling.BICUBIC)
    return warped


@lru_cache(maxsize=1)
def _sensor() -> NDArray[np.uint8]:
    """Noise of a camera sensor, [960, 1280, 3], within -16..16 in two's complement."""
    draw = generator(0, 0, stream=8)
    values = draw.normal(0.0, _NOISE, (960, 1280, 1)) + draw.normal(0.0, _NOISE / 3, (960, 1280, 3))
    return values.clip(-16, 16).round().astype(np.int8).view(np.uint8)


def _grain(scene: Scene, gripper: Gripper, camera: str) -> NDArray[np.uint8]:
    """This image's own window of the noise: another one for another place of the gripper."""
    mixed = scene.noise + 7919 * CAMERAS.index(camera) + sum(round(value * 1e4) * k for value, k in
                                                             zip(gripper, (31, 1009, 65537, 257), strict=True))
    row, column = mixed % 479, mixed // 479 % 639
    return _sensor()[row:row + HEIGHT, column:column + WIDTH]
