"""The compiled resize makes Pillow's pixels, bit for bit, or isn't used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lfhelpers.data import draws, images, resize

MATRIX = draws.draw(1, 0, np.arange(1))[0].matrix


@pytest.fixture
def fresh() -> Iterator[None]:
    """What one test makes of the compiler stays in that test."""
    resize.compiled.cache_clear()
    yield
    resize.compiled.cache_clear()


def noise(width: int, height: int, seed: int = 0, hard: bool = False) -> np.ndarray:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return np.where(levels > 127, 255, 0).astype(np.uint8) if hard else levels


def pillow(frame: np.ndarray, box: resize.Box, matrix: np.ndarray | None, size: int) -> np.ndarray:
    return images.augment(Image.fromarray(frame[:, :, :3]), box, matrix, size)


def test_this_machine_has_a_compiler_that_makes_pillows_pixels() -> None:
    """Else all tests below would compare Pillow with itself."""
    assert resize.compiled() is not None


@given(width=st.integers(1, 160), height=st.integers(1, 120), size=st.integers(1, 70), seed=st.integers(0, 999),
       hard=st.booleans(), whole=st.booleans(), coloured=st.booleans(), data=st.data())
@settings(max_examples=400, deadline=None)
def test_any_frame_box_and_colours(width: int, height: int, size: int, seed: int, hard: bool, whole: bool,
                                   coloured: bool, data: st.DataObject) -> None:
    frame, box = noise(width, height, seed, hard), []
    for length in (width, height):
        low = data.draw(st.integers(0, length - 1) if whole else st.floats(0, length - 0.5))
        high = data.draw(st.integers(int(low) + 1, length) if whole else st.floats(low + 0.25, length))
        box.append((low, high))
    place = (box[0][0], box[1][0], box[0][1], box[1][1])
    matrix = draws.draw(seed, 0, np.arange(1))[0].matrix if coloured else None
    assert np.array_equal(resize.augment(frame, place, matrix, size), pillow(frame, place, matrix, size))


@pytest.mark.parametrize(("width", "height"), [(640, 480), (320, 240), (480, 640), (1920, 1080), (224, 224), (3, 2),
                                               (100, 2000)])
def test_common_sizes(width: int, height: int) -> None:
    frame = noise(width, height)
    for offset in ((0.0, 0.0), (0.5, 0.5), (0.999, 0.999)):
        box = draws.crop_box(offset, width, height)
        assert np.array_equal(resize.augment(frame, box, MATRIX, 224), pillow(frame, box, MATRIX, 224))


def test_without_a_compiler_pillow_does_it(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize, "COMPILER", "no-such-compiler")
    assert resize.compiled() is None
    frame = noise(64, 48)
    assert np.array_equal(resize.augment(frame, (1, 2, 60, 40), MATRIX, 24), pillow(frame, (1, 2, 60, 40), MATRIX, 24))


@pytest.mark.parametrize(("old", "new"), [("#define HALF (1 << (BITS - 1))", "#define HALF 0"), ("0.5f", "0.4f"),
                                          ("int resize(", "int resize("  + "syntax error")])
def test_a_kernel_that_rounds_otherwise_or_does_not_compile_is_not_used(
        fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str) -> None:
    text = resize.SOURCE.read_text()
    assert old in text
    (tmp_path / "resize.c").write_text(text.replace(old, new))
    monkeypatch.setattr(resize, "SOURCE", tmp_path / "resize.c")
    assert resize.compiled() is None


def test_the_wrapped_frame_is_not_copied() -> None:
    frame = noise(8, 6)
    wrapped = resize.image(frame)
    frame[2, 3, :3] = (1, 2, 3)
    assert wrapped.mode == "RGB" and wrapped.size == (8, 6) and wrapped.getpixel((3, 2)) == (1, 2, 3)


def test_what_was_compiled_is_kept_and_made_again_where_it_is_damaged_or_cannot_be_kept(
        fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = []
    run = resize.subprocess.run
    monkeypatch.setattr(resize.subprocess, "run", lambda *given, **how: compiled.append(1) or run(*given, **how))

    def count(cache: Path) -> int:
        monkeypatch.setenv("LFHELPERS_CACHE", str(cache))
        resize.compiled.cache_clear()
        before = len(compiled)
        assert resize.compiled() is not None
        return len(compiled) - before

    assert [count(tmp_path) for _ in range(2)] == [1, 0]
    (kept,) = (tmp_path / "resize").iterdir()
    damaged = kept.read_bytes()[:5000]
    kept.unlink()  # its memory is in use here
    kept.write_bytes(damaged)
    assert [count(tmp_path) for _ in range(2)] == [1, 0]
    (tmp_path / "a file").touch()
    assert [count(tmp_path / "a file") for _ in range(2)] == [1, 1]
