"""One step of a LeRobot episode as the members of a sample.

Steps are asked for in order within a shard, so that what is open is kept: one table, one episode's rows, one video a
camera. Any other order gives the same bytes and takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from lfhelpers.data.importers import episodes
from lfhelpers.data.importers.episodes import Episode
from lfhelpers.data.importers.found import jpeg, stored
from lfhelpers.data.importers.video import Video

Floats = NDArray[np.float64]
FIXED = ("timestamp", "frame_index", "episode_index", "task_index")
REACH = 2.0  # frames that a video may end early or skip; its nearest frame is taken, beyond that it is an error


@dataclass
class Steps:
    """Makes the members of a step; neighbours in order cost one pass over table and video."""

    root: Path
    episodes: Sequence[Episode]
    starts: NDArray[np.int64]
    """[episodes + 1]: the number of each episode's first sample, and the count of all."""
    tasks: Mapping[int, str]
    cameras: Mapping[str, str]
    keys: tuple[str, str]
    fps: float
    every: int
    state_dim: int
    chunk: tuple[int, int]
    limits: tuple[Floats, Floats] | None
    """Lowest and highest action [dimensions], which become -1 and 1."""
    _open: dict[str, tuple[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, index: int) -> dict[str, bytes]:
        which = int(np.searchsorted(self.starts, index, side="right")) - 1
        episode, frame = self.episodes[which], int(index - self.starts[which]) * self.every
        rows = self._rows(episode)
        task = self.tasks[int(rows["task_index"][frame])]
        about = {"episode": episode.number, "frame": frame, "task": task, "fps": self.fps}
        return {
            **{f"{name}.jpg": self._picture(episode, key, frame, rows) for name, key in self.cameras.items()},
            "txt": task.encode(),
            "state.f32": _padded(rows[self.keys[0]][frame][None], (1, self.state_dim)),
            "action.f32": _padded(self._actions(rows[self.keys[1]], frame), self.chunk),
            "json": orjson.dumps(about),
        }

    def _rows(self, episode: Episode) -> dict[str, NDArray[Any]]:
        """The episode's rows; "row" is their place in the table."""
        path = self.root / episode.table
        table = self._held("table", episode.table, lambda: episodes.columns(path, [*FIXED, *self.keys]))
        return self._held("rows", f"{episode.table}:{episode.number}", lambda: rows_of(table, episode.number))

    def _picture(self, episode: Episode, key: str, frame: int, rows: Mapping[str, NDArray[Any]]) -> bytes:
        if key not in episode.videos:
            cell = episodes.picture(self.root / episode.table, key, int(rows["row"][frame]))
            return stored(cell, f"{episode.table}, {key} of episode {episode.number}, frame {frame}")[0]
        file, start = episode.videos[key]
        video = self._held(key, file, lambda: Video(self.root / file))
        return jpeg(video.image(start + float(rows["timestamp"][frame]), REACH / self.fps))

    def _actions(self, actions: NDArray[Any], frame: int) -> NDArray[Any]:
        """The chunk from this frame on; past the episode's end its last action is repeated."""
        chunk = actions[np.minimum(frame + np.arange(self.chunk[0]), len(actions) - 1)]
        return chunk if self.limits is None else normalised(chunk, *self.limits)

    def _held(self, what: str, name: str, make: Any) -> Any:
        """What was opened last under `what`, made anew where that was another one."""
        if self._open.get(what, ("", None))[0] != name:
            self._open.pop(what, None)  # closed before the next one is opened
            self._open[what] = name, make()
        return self._open[what][1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}  # open files mean nothing in another process


def normalised(actions: NDArray[Any], low: Floats, high: Floats) -> Floats:
    """(actions - low) / (high - low) scaled to -1..1, as GR00T N1.6 does it; a number that never changes becomes 0."""
    span = high - low
    return np.where(span > 0, (actions - low) / np.where(span > 0, span, 1) * 2 - 1, 0.0)


def rows_of(table: Mapping[str, NDArray[Any]], number: int) -> dict[str, NDArray[Any]]:
    """One episode's rows; those of state and action are [rows, dimensions]."""
    place = np.flatnonzero(table["episode_index"] == number)
    rows = {name: column[place] for name, column in table.items()}
    return {name: column[:, None] if name not in FIXED and column.ndim == 1 else column
            for name, column in rows.items()} | {"row": place}


def _padded(values: NDArray[Any], shape: tuple[int, int]) -> bytes:
    """Little-endian float32 of that shape, zeros where there are no values."""
    whole = np.zeros(shape, dtype="<f4")
    whole[:, :values.shape[1]] = values
    return whole.tobytes()
