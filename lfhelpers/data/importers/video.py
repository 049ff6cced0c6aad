"""Frames of a video by their time, decoded forwards.

Asking for every frame costs one pass; asking for few of them jumps, but only where a key frame lies between the last
frame and the wanted one, since everything from a key frame on must be decoded anyway. A seek for each frame, the usual
way, decodes from the key frame each time: half a group of pictures for every single frame.
"""

from __future__ import annotations

from pathlib import Path

import av
from av import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from lfhelpers.errors import LfError


class Video:
    """One open file. Not for several threads at once; it closes with its last reference."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._container = av.open(str(path))
            self._stream = self._container.streams.video[0]
        except (av.FFmpegError, OSError, IndexError) as error:
            raise LfError(f"{path} is no readable video: {error}.") from error
        assert self._stream.time_base is not None
        self._tick = float(self._stream.time_base)
        self._first = self._stream.start_time or 0
        self._stream.codec_context.thread_count = 1  # writer processes are what runs side by side
        self._behind: VideoFrame | None = None  # the last frame that is not after the time asked for
        self._ahead: VideoFrame | None = None  # the one after it
        self._colours = VideoReformatter()  # one for all frames: making its tables costs as much as using them
        self._damaged = False  # a frame since the last key frame was
        self._jump(0.0)

    @property
    def end(self) -> float | None:
        """The time of the last frame in seconds as the header tells it, or None where it tells none."""
        if not self._stream.duration or not self._stream.average_rate:
            return None
        return (self._first + self._stream.duration) * self._tick - 1 / float(self._stream.average_rate)

    def at(self, seconds: float, reach: float) -> VideoFrame:
        """The frame nearest to a time. Raises LfError where none is within `reach` seconds, or it is damaged."""
        if (self._behind is not None and seconds < _time(self._behind)) or self._key_between(seconds):
            self._jump(seconds)
        while self._ahead is not None and _time(self._ahead) <= seconds:
            # Damage goes on in what is predicted from a frame, but the frame alone is marked. What is shown before it
            # and predicted from it is not found out; FFmpeg's own strictness would, and fails on sound files too.
            self._damaged = self._ahead.is_corrupt or (self._damaged and not self._ahead.key_frame)
            self._behind, self._ahead = self._ahead, self._next()
        near = [frame for frame in (self._behind, self._ahead) if frame is not None]
        frame = min(near, key=lambda item: abs(_time(item) - seconds), default=None)
        if frame is None or abs(_time(frame) - seconds) > reach:
            nearest = "it has none at all" if frame is None else f"the nearest is at {_time(frame):.3f} s"
            raise LfError(f"{self.path} has no frame at {seconds:.3f} s, {nearest}; mend the file, or give "
                          "its episode's number in leave_out=.")
        if frame.is_corrupt or (self._damaged and not frame.key_frame):
            raise LfError(f"{self.path} is damaged at {_time(frame):.3f} s; mend the file, or give its "
                          "episode's number in leave_out=.")
        return frame

    def image(self, seconds: float, reach: float) -> Image.Image:
        """The same frame as an RGB image."""
        return self._colours.reformat(self.at(seconds, reach), format="rgb24").to_image()

    def _key_between(self, seconds: float) -> bool:
        """Whether a key frame lies after what is decoded already, and not after the wanted time."""
        if self._ahead is None or self._ahead.pts is None:
            return False
        key = self._key(int(seconds / self._tick))
        return key is not None and key > self._ahead.pts

    def _key(self, place: int) -> int | None:
        """The last key frame that is not after a time in ticks, or None. Indices count time in decoding order."""
        entry = self._stream.index_entries.search_timestamp(place, backward=True)
        return self._stream.index_entries[entry].timestamp if entry >= 0 else None

    def _jump(self, seconds: float) -> None:
        """Go to the last key frame that is not after the wanted time, or to the first frame."""
        place = int(seconds / self._tick)
        while True:
            self._container.seek(max(place, self._first), stream=self._stream)
            self._frames = self._container.decode(self._stream)
            self._behind, self._ahead, self._damaged = None, self._next(), False
            while self._ahead is not None and not self._ahead.key_frame and place > self._first:
                self._ahead = self._next()  # shown before the key frame, but predicted from what lies before it too
            if place <= self._first or (self._ahead is not None and _time(self._ahead) <= seconds):
                return
            key = self._key(place)  # it is decoded before, but shown after the wanted time: take the one before it
            place = self._first if key is None else key - 1

    def _next(self) -> VideoFrame | None:
        try:
            return next(self._frames, None)
        except av.FFmpegError as error:
            raise LfError(f"{self.path} can't be decoded: {error}; mend the file, or give its episode's number in "
                          "leave_out=.") from error


def _time(frame: VideoFrame) -> float:
    assert frame.time is not None
    return frame.time
