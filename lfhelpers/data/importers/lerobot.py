"""LeRobot datasets (v2.0, v2.1 and v3: tables and videos) as samples of the `vla` workload.

A sample is one frame: front.jpg, wrist.jpg, txt (the task), state.f32, action.f32 (the next steps from this frame) and
json (episode, frame, task, fps). Video is decoded once here and stored as JPEG: training then reads any frame at the
price of one JPEG, where a video must be decoded from its last key frame each time. The price is 10 to 50 times the
disk space.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from lfhelpers.data.importers import episodes
from lfhelpers.data.importers.episodes import Episode, Layout
from lfhelpers.data.importers.found import Found, OnBad, Progress, Refused, digest, jpeg, look, settle, stored
from lfhelpers.data.importers.video import Video
from lfhelpers.errors import LfError, nearest

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
        return self._held("rows", f"{episode.table}:{episode.number}", lambda: _rows_of(table, episode.number))

    def _picture(self, episode: Episode, key: str, frame: int, rows: Mapping[str, NDArray[Any]]) -> bytes:
        if key not in episode.videos:
            cell = episodes.picture(self.root / episode.table, key, int(rows["row"][frame]))
            return stored(cell, f"{episode.table}, {key} of episode {episode.number}, frame {frame}")[0]
        file, start = episode.videos[key]
        video = self._held(key, file, lambda: Video(self.root / file))
        return jpeg(video.at(start + float(rows["timestamp"][frame]), REACH / self.fps).to_image())

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


@dataclass(frozen=True)
class _Part:
    """What a table says of one episode. problem: why it can't be packed."""

    problem: str | None
    last: float = 0.0
    low: Floats = field(default_factory=lambda: np.array([]))
    high: Floats = field(default_factory=lambda: np.array([]))


def read(source: Path, *, cameras: Mapping[str, str] | None = None, every: int = 1, state: str = "observation.state",
         action: str = "action", state_dim: int = 8, chunk: tuple[int, int] = (16, 7), normalise: bool = True,
         on_bad: OnBad = "refuse", jobs: int = 1, progress: Progress = True) -> Found:
    """Every `every`-th frame of each episode; a frame's actions are always those of the steps that follow it.

    cameras: {"front": feature, "wrist": feature}, names as in the dataset or their last part; its first two by default.
    state_dim, chunk: numbers of a state, and (steps, numbers a step) of the actions; filled up with zeros.
    normalise: actions to -1..1 by the range in meta/stats.json, or the data's own; the manifest's source keeps it.
    on_bad: "refuse", or "skip" episodes that are incomplete. Raises LfError for what can't be packed, or doesn't fit.
    """
    layout = episodes.read(source)
    views = _views(layout, cameras)
    if every < 1 or min(chunk) < 1:
        raise LfError(f"every = {every} and chunk = {tuple(chunk)} can't be packed with; give 1 or more.")
    widths = _width(layout, state, state_dim, "state_dim"), _width(layout, action, chunk[1], "chunk")
    good, refused, parts = _checked(layout, list(views.values()), (state, action), widths, jobs, progress)
    counts = settle(str(source), len(good), refused, on_bad)
    limits, origin = _limits(layout, action, parts)
    steps = [-(-episode.length // every) for episode in good]
    starts = np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
    sample = Steps(source.absolute(), good, starts, layout.tasks, views, (state, action), layout.fps, every, state_dim,
                   (chunk[0], chunk[1]), limits if normalise else None)
    files = sorted({file for one in good for file in (one.table, *(one.videos[key][0] for key in views.values()
                                                                   if key in one.videos))})
    about = {"importer": "lerobot", "name": source.name, "version": layout.version, "fps": layout.fps, "cameras": views,
             "every": every, "state": state, "action": action, "state_dim": state_dim, "chunk": list(chunk),
             "episodes": len(good), "left_out": counts,
             "content": digest(f"{file}\t{(source / file).stat().st_size}" for file in files)}
    if normalise:
        about["range"] = {"from": origin, "low": limits[0].tolist(), "high": limits[1].tolist()}
    notes = [f"cameras: {', '.join(f'{name}.jpg is {key}' for name, key in views.items())}",
             f"actions are scaled to -1..1 by the range of {origin}" if normalise else "actions are as they were recorded"]
    return Found(sample, int(starts[-1]), about, refused, notes)


def normalised(actions: NDArray[Any], low: Floats, high: Floats) -> Floats:
    """(actions - low) / (high - low) scaled to -1..1, as GR00T N1.6 does it; a number that never changes becomes 0."""
    span = high - low
    return np.where(span > 0, (actions - low) / np.where(span > 0, span, 1) * 2 - 1, 0.0)


def _views(layout: Layout, wanted: Mapping[str, str] | None) -> dict[str, str]:
    """Member name without .jpg -> camera feature."""
    known = layout.cameras()
    if wanted is None:
        if len(known) < 2:
            raise LfError(f"{layout.root} has {len(known)} cameras ({', '.join(known)}) and the vla workload reads two; "
                          "name them, one of them twice if need be: cameras={'front': NAME, 'wrist': NAME}.")
        return {"front": known[0], "wrist": known[1]}
    chosen = {}
    for name, key in wanted.items():
        match = [item for item in known if item == key or item.endswith(f".{key}")]
        if len(match) != 1:
            raise LfError(f"{layout.root} has no camera '{key}'; {nearest(key, known)}")
        chosen[name.removesuffix(".jpg")] = match[0]
    return chosen


def _width(layout: Layout, key: str, room: int, option: str) -> int:
    """How many numbers a feature has. Raises LfError where the sample has no room for them."""
    if key not in layout.features:
        kind = "state" if option == "state_dim" else "action"
        raise LfError(f"{layout.root} has no feature '{key}' for the {kind}; {nearest(key, layout.features)}")
    width = int(np.prod(layout.features[key]["shape"]))
    if width > room:
        value = "state_dim={}" if option == "state_dim" else "chunk=(STEPS, {})"
        raise LfError(f"{key} of {layout.root} has {width} numbers and the sample has room for {room}; give "
                      f"{value.format(width)} and a workload that reads as many.")
    return width


def _checked(layout: Layout, views: Sequence[str], keys: tuple[str, str], widths: tuple[int, int], jobs: int,
             progress: Progress) -> tuple[list[Episode], Refused, list[_Part]]:
    """The episodes that can be packed with what their tables say, and the others with the reason."""
    tables = sorted({episode.table for episode in layout.episodes})
    read_parts = functools.partial(_parts, layout, keys, widths)
    parts = dict(zip(tables, look(read_parts, tables, jobs, progress, "tables"), strict=True))
    videos = sorted({one.videos[key][0] for one in layout.episodes for key in views if key in one.videos})
    ends = dict(zip(videos, look(functools.partial(_end, layout.root), videos, jobs, progress, "videos"), strict=True))
    good, refused, kept = [], [], []
    for episode in layout.episodes:
        part = parts[episode.table].get(episode.number, _Part("no rows in its table"))
        problem = part.problem or _video_problem(episode, views, ends, part.last, layout.fps)
        if problem:
            refused.append((f"episode {episode.number}", problem))
        else:
            good.append(episode)
            kept.append(part)
    return good, refused, kept


def _parts(layout: Layout, keys: tuple[str, str], widths: tuple[int, int], table: str) -> dict[int, _Part]:
    """Each episode of one table; all have the same problem where the table can't be read."""
    lengths = {episode.number: episode.length for episode in layout.episodes if episode.table == table}
    if not (layout.root / table).exists():
        return dict.fromkeys(lengths, _Part("no table"))
    try:
        whole = episodes.columns(layout.root / table, [*FIXED, *keys])
    except LfError:
        return dict.fromkeys(lengths, _Part("unreadable table"))
    return {number: _part(layout.tasks, keys, widths, length, _rows_of(whole, number))
            for number, length in lengths.items()}


def _part(tasks: Mapping[int, str], keys: tuple[str, str], widths: tuple[int, int], length: int,
          rows: Mapping[str, NDArray[Any]]) -> _Part:
    if len(rows["row"]) != length or not length or (rows["frame_index"] != np.arange(length)).any():
        return _Part("frames that its table lacks")
    if any(rows[key].shape[1] != width for key, width in zip(keys, widths, strict=True)):
        return _Part("another width of state or action than info.json says")
    if not all(np.isfinite(rows[key]).all() for key in (*keys, "timestamp")):
        return _Part("numbers that are not finite")
    if any(not tasks.get(int(number), "").strip() for number in np.unique(rows["task_index"])):
        return _Part("no task")
    actions = rows[keys[1]].astype(np.float64)
    return _Part(None, float(rows["timestamp"].max()), actions.min(axis=0), actions.max(axis=0))


def _rows_of(table: Mapping[str, NDArray[Any]], number: int) -> dict[str, NDArray[Any]]:
    """One episode's rows; those of state and action are [rows, dimensions]."""
    place = np.flatnonzero(table["episode_index"] == number)
    rows = {name: column[place] for name, column in table.items()}
    return {name: column if name in FIXED else column.reshape(len(place), -1) for name, column in rows.items()} | {
        "row": place}


def _end(root: Path, file: str) -> float | str | None:
    """The time of a video's last frame, None where its header doesn't tell it, or why it can't be read."""
    if not (root / file).exists():
        return "no video"
    try:
        return Video(root / file).end
    except LfError:
        return "unreadable video"


def _video_problem(episode: Episode, views: Sequence[str], ends: Mapping[str, float | str | None], last: float,
                   fps: float) -> str | None:
    for key in views:
        if key in episode.videos:
            file, start = episode.videos[key]
            end = ends[file]
            if isinstance(end, str):
                return end
            if end is not None and start + last > end + REACH / fps + 1e-3:
                return "a video that ends early"
    return None


def _limits(layout: Layout, action: str, parts: Sequence[_Part]) -> tuple[tuple[Floats, Floats], str]:
    """The range of each number of an action, and where it is from: the dataset's own where that covers the data."""
    low, high = np.min([part.low for part in parts], axis=0), np.max([part.high for part in parts], axis=0)
    own = layout.stats.get(action, {})
    least, most = (np.asarray(own.get(name, []), dtype=np.float64).ravel() for name in ("min", "max"))
    slack = 1e-5 * (np.abs(high) + np.abs(low))  # their numbers went through float32 and text
    if least.shape == most.shape == low.shape and (least <= low + slack).all() and (most >= high - slack).all():
        return (least, most), "meta/stats.json"
    return (low, high), "its actions"


def _padded(values: NDArray[Any], shape: tuple[int, int]) -> bytes:
    """Little-endian float32 of that shape, zeros where there are no values."""
    whole = np.zeros(shape, dtype="<f4")
    whole[:, :values.shape[1]] = values
    return whole.tobytes()
