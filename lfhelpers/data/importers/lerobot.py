"""LeRobot datasets (v2.0, v2.1 and v3: tables and videos) as samples of the `vla` workload.

A sample is one frame: front.jpg, wrist.jpg, txt (the task), state.f32, action.f32 (the next steps from this frame) and
json (episode, frame, task, fps). Video is decoded once here and stored as JPEG: training then reads any frame at the
price of one JPEG, where a video must be decoded from its last key frame each time. The price is several times the disk
space.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lfhelpers.data.importers import episodes
from lfhelpers.data.importers.episodes import Episode, Layout
from lfhelpers.data.importers.found import Found, OnBad, Progress, Refused, digest, look, settle
from lfhelpers.data.importers.steps import FIXED, REACH, Floats, Steps, rows_of
from lfhelpers.data.importers.video import Video
from lfhelpers.errors import LfError, nearest


@dataclass(frozen=True)
class _Part:
    """What a table says of one episode. problem: why it can't be packed."""

    problem: str | None
    last: float = 0.0
    low: Floats = field(default_factory=lambda: np.array([]))
    high: Floats = field(default_factory=lambda: np.array([]))


def read(source: Path, *, cameras: Mapping[str, str] | None = None, every: int = 1, state: str = "observation.state",
         action: str = "action", state_dim: int = 8, chunk: tuple[int, int] = (16, 7), normalise: bool = True,
         leave_out: Sequence[int] = (), on_bad: OnBad = "refuse", jobs: int = 1, progress: Progress = True) -> Found:
    """Every `every`-th frame of each episode; a frame's actions are always those of the steps that follow it.

    cameras: {"front": feature, "wrist": feature}, names as in the dataset or their last part; its first two by default.
    state_dim, chunk: numbers of a state, and (steps, numbers a step) of the actions; filled up with zeros.
    normalise: actions to -1..1 by the range in meta/stats.json, or the data's own; the manifest's source keeps it.
    leave_out: numbers of episodes that are not wanted. on_bad: "refuse", or "skip" episodes that are incomplete.
    Raises LfError for what can't be packed or doesn't fit.
    """
    layout = _without(episodes.read(source), leave_out)
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
    scaled = f"scaled to -1..1 by the range of {origin}" if normalise else "as they were recorded"
    notes = [f"cameras: {', '.join(f'{name}.jpg is {key}' for name, key in views.items())}", f"actions are {scaled}"]
    return Found(sample, int(starts[-1]), about, refused, notes)


def _without(layout: Layout, leave_out: Sequence[int]) -> Layout:
    numbers = [episode.number for episode in layout.episodes]
    if unknown := set(leave_out) - set(numbers):
        raise LfError(f"{layout.root} has no episode {min(unknown)} to leave out; it has {len(numbers)} episodes"
                      + (f", {numbers[0]} to {numbers[-1]}." if numbers else "."))
    return replace(layout, episodes=[episode for episode in layout.episodes if episode.number not in leave_out])


def _views(layout: Layout, wanted: Mapping[str, str] | None) -> dict[str, str]:
    """Member name without .jpg -> camera feature."""
    known = layout.cameras()
    if wanted is None:
        if len(known) < 2:
            raise LfError(f"{layout.root} has not two cameras but {', '.join(known) or 'none'}, and the vla workload "
                          "reads two; name one twice: cameras={'front': NAME, 'wrist': NAME}.")
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
    width = int(np.prod(layout.features[key].get("shape") or 0))
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
    return {number: _part(layout.tasks, keys, widths, length, rows_of(whole, number))
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
