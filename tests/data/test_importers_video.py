"""A frame asked for by its time is the right one, whatever was asked for before."""

from __future__ import annotations

import contextlib
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lfhelpers.data.importers.video import Video
from lfhelpers.errors import LfError

FPS, FRAMES, BITS = 30, 60, 6


def drawn(number: int) -> NDArray[np.uint8]:
    """A grey picture whose six fields spell a number."""
    fields = [230 if number >> bit & 1 else 30 for bit in range(BITS)]
    return np.broadcast_to(np.repeat(np.array(fields, np.uint8), 16)[None, :, None], (32, 16 * BITS, 3)).copy()


def spelled(frame: av.VideoFrame) -> int:
    row = frame.to_ndarray(format="rgb24")[16, 8::16, 0]
    return sum(1 << bit for bit, value in enumerate(row) if value > 130)


@pytest.fixture(scope="module", params=[(2, 0), (12, 2), (250, 2)], ids=["short groups", "B-frames", "one key frame"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    group, between = request.param
    path = tmp_path_factory.mktemp("video") / "numbers.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 16 * BITS, 32, "yuv420p"
        stream.gop_size, stream.max_b_frames, stream.bit_rate = group, between, 2_000_000
        for number in range(FRAMES):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(drawn(number), format="rgb24")))
        output.mux(stream.encode())
    return path


@pytest.mark.parametrize("every", [1, 3, 7, 20])
def test_every_so_many_frames_in_order(path: Path, every: int) -> None:
    video = Video(path)
    wanted = list(range(0, FRAMES, every))
    assert [spelled(video.at(float(np.float32(number / FPS)), 0.01)) for number in wanted] == wanted
    assert video.end == pytest.approx((FRAMES - 1) / FPS)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, FRAMES - 1), max_size=8))
def test_any_order_gives_the_same_frames(path: Path, numbers: list[int]) -> None:
    video = Video(path)
    assert [spelled(video.at(number / FPS, 0.01)) for number in numbers] == numbers


def test_few_frames_are_not_paid_for_with_all(path: Path) -> None:
    video, decoded = Video(path), []
    step, video._next = video._next, lambda: decoded.append(1) or step()  # type: ignore[func-returns-value, method-assign]
    keys = sum(entry.is_keyframe for entry in video._stream.index_entries)
    for number in (0, 25, 50):
        video.at(number / FPS, 0.01)
    assert len(decoded) <= min(52, 3 * (FRAMES // keys + 2))


def test_beyond_the_last_frame_it_is_repeated_or_an_error(path: Path) -> None:
    video = Video(path)
    assert spelled(video.at((FRAMES + 1) / FPS, 2 / FPS + 1e-6)) == FRAMES - 1
    with pytest.raises(LfError, match=r"numbers.mp4 has no frame at 2.100 s, the nearest is at 1.967 s; mend the file"):
        video.at((FRAMES + 3) / FPS, 2 / FPS + 1e-6)


@pytest.mark.parametrize("content", [b"", b"<html></html>", None], ids=["empty", "html", "missing"])
def test_what_is_no_video_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.mp4").write_bytes(content)
    with pytest.raises(LfError, match=r"x.mp4 is no readable video: "):
        Video(tmp_path / "x.mp4")


def test_a_cut_video_is_an_error(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[:len(data) // 2])  # its table of frames is at the end
    with pytest.raises(LfError, match=r"cut.mp4 is no readable video"):
        Video(tmp_path / "cut.mp4")


@pytest.mark.parametrize("every", [1, 3])
def test_damage_is_an_error_also_in_what_is_predicted_from_it(path: Path, tmp_path: Path, every: int) -> None:
    whole = Video(path)  # kept: what an index's entries point at is freed with their file
    entries = whole._stream.index_entries
    data = bytearray(path.read_bytes())
    data[entries[31].pos + 8:entries[32].pos] = bytes(entries[32].pos - entries[31].pos - 8)
    (tmp_path / "numbers.mp4").write_bytes(data)
    video, seen = Video(tmp_path / "numbers.mp4"), []
    wanted = list(range(0, FRAMES, every))
    sound = sum(entry.is_keyframe for entry in entries) == 30 and every == 3  # then nobody looks at the damaged frame
    damaged = pytest.raises(LfError, match=r"numbers.mp4 is damaged at 1\.\d+ s; mend")
    with contextlib.nullcontext() if sound else damaged:
        seen.extend(spelled(video.at(number / FPS, 0.01)) for number in wanted)
    before = len(wanted) if sound else 30 // every
    assert seen[:before] == wanted[:before] and len(seen) <= (FRAMES if sound else 36) // every
