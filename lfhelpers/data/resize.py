"""images.augment of RGBX frames: the same bits 3.5 times faster, by `resize.c`, where this machine has a C compiler.

Pillow's resize takes as long as a decode does, and no library makes its pixels faster: the weights of OpenCV and torch
have fewer bits. So its arithmetic is written down again, for vectors, and compiled for this very processor when it is
first used, which takes half a second, and kept. Without a compiler, or should another Pillow round otherwise, Pillow
does the work, and nothing but the time differs. Frames higher than wide always go to Pillow: some versions take their
columns first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from lfhelpers import runs
from lfhelpers.data import images
from lfhelpers.measure import formats

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = "cc"
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")

Box = tuple[float, float, float, float]
Pixels = NDArray[np.uint8]


def augment(frame: Pixels, box: Box, matrix: NDArray[np.float64] | None, size: int) -> Pixels:
    """images.augment of a frame, uint8 [H, W, 4] of RGBX: uint8 [size, size, 3]. Releases the interpreter."""
    height, width, _ = frame.shape
    kernel = compiled()
    made = kernel(frame, box, matrix, size) if kernel and width >= height else None
    return images.augment(image(frame), box, matrix, size) if made is None else made


def image(frame: Pixels) -> Image.Image:
    """uint8 [H, W, 4] as an RGB image, without a copy: Pillow stores RGB in four bytes, of which it skips the last."""
    height, width, _ = frame.shape
    return Image.fromarrow(pa.FixedSizeListArray.from_arrays(pa.array(frame.reshape(-1)), 4), "RGB", (width, height))


Kernel = Callable[[Pixels, Box, NDArray[np.float64] | None, int], Pixels | None]


@functools.cache
def compiled() -> Kernel | None:
    """The function in resize.c, None where it can't be compiled or doesn't make Pillow's pixels.

    It gives uint8 [size, size, 3], or None for a frame that is smaller than the filter.
    """
    try:
        function = _library().resize
    except (OSError, subprocess.CalledProcessError):
        return None

    def kernel(frame: Pixels, box: Box, matrix: NDArray[np.float64] | None, size: int) -> Pixels | None:
        height, width, _ = frame.shape
        assert 0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height, (box, frame.shape)
        corners, out = np.array(box, np.float32), np.empty((size, size, 3), np.uint8)
        colours = None if matrix is None else matrix.astype(np.float32)
        status = function(_at(np.ascontiguousarray(frame)), width, height, _at(corners), _at(colours), size, _at(out))
        return None if status else out

    return kernel if _exact(kernel) else None


def _library() -> ctypes.CDLL:
    """resize.c for this processor, compiled where it isn't kept yet; where nothing can be kept, for this process alone.

    Raises OSError and CalledProcessError as the compiler's start and end do.
    """
    made_for = _digest(repr((COMPILER, FLAGS, sorted(formats.cpu_flags()), SOURCE.read_bytes())).encode())
    place = runs.cache() / "resize"
    for kept in place.glob(f"{made_for}-*.so"):
        if kept.stem == f"{made_for}-{_digest(kept.read_bytes())}":  # a damaged one would end the process
            return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as folder:  # loaded code needs no file
        library = Path(folder) / "resize.so"
        subprocess.run([COMPILER, *FLAGS, "-o", library, SOURCE, "-lm"], check=True, capture_output=True)
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            runs.write_atomic(place / f"{made_for}-{_digest(library.read_bytes())}.so", library.read_bytes())
        return ctypes.CDLL(str(library))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _exact(kernel: Kernel) -> bool:
    """Whether it makes this Pillow's pixels of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 4), dtype=np.uint8)
    box, matrix = (1.0, 2.0, 61.0, 47.5), np.array([[1.1, 0.1, -0.1, 3], [0, 0.9, 0.2, -9], [0.3, 0, 0.8, 0.4]])
    made = kernel(noise, box, matrix, 22)
    return made is not None and bool((made == images.augment(image(noise), box, matrix, 22)).all())


def _at(array: NDArray[np.generic] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)
