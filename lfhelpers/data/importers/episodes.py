"""Where a LeRobot dataset keeps what: versions 2.0 and 2.1 have files an episode, version 3 many episodes a file.

Only the files' own names and lists are trusted for places; lengths, frame numbers and values are checked against the
tables themselves, since hand-edited and half-copied datasets are common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lfhelpers.errors import LfError


@dataclass(frozen=True)
class Episode:
    """One episode: its number, frames, table, and for each camera its video and the second at which it begins there.

    Files are relative to the dataset. Cameras whose images are in the table have no entry.
    """

    number: int
    length: int
    table: str
    videos: dict[str, tuple[str, float]]


@dataclass(frozen=True)
class Layout:
    """What a dataset's meta folder says."""

    root: Path
    version: str
    fps: float
    features: dict[str, dict[str, Any]]
    episodes: list[Episode]
    tasks: dict[int, str]
    stats: dict[str, Any]

    def cameras(self) -> list[str]:
        """Features that are colour pictures, in the dataset's order."""
        return [key for key, feature in self.features.items() if feature.get("dtype") in ("image", "video")
                and not (feature.get("info") or {}).get("video.is_depth_map")]


def read(root: Path) -> Layout:
    """The layout of the dataset in `root`. Raises LfError where its meta folder is incomplete or of another version."""
    info = _json(root / "meta/info.json")
    version = str(info.get("codebase_version"))
    if version not in ("v2.0", "v2.1") and not version.startswith("v3."):
        raise LfError(f"{root} is a LeRobot dataset of version {version}; v2.0, v2.1 and v3 can be read: convert it "
                      "with the lerobot package.")
    try:
        features, fps = info["features"], float(info["fps"])
        list_ = _split if version.startswith("v3.") else _whole
        episodes = sorted(list_(root, info, features), key=lambda episode: episode.number)
        tasks = _tasks(root, version)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise LfError(f"the meta folder of {root} is incomplete: {type(error).__name__}: {error}; copy the dataset "
                      "again.") from error
    stats = _json(root / "meta/stats.json") if (root / "meta/stats.json").exists() else {}
    return Layout(root, version, fps, features, episodes, tasks, stats)


def columns(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Columns of a table as [rows] or [rows, dimension] arrays. Raises LfError for what is missing or no number."""
    try:
        table = pq.read_table(path, columns=list(names))
    except (OSError, pa.ArrowException) as error:
        raise LfError(f"{path} is no readable table: {error}.") from error
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise LfError(f"{path} has no column {missing[0]}; it doesn't fit the dataset's info.json.")
    return {name: _array(table.column(name), f"{path}, column {name}") for name in names}


def picture(path: Path, column: str, row: int) -> bytes:
    """The image file in one cell of a table, reading no more than its group of rows."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if row < count:
                cell = file.read_row_group(group, columns=[column]).column(column)[row].as_py() or {}
                break
            row -= count
    data = cell.get("bytes")
    if not data:
        raise LfError(f"{path} holds no image in {column}, only its name {cell.get('path')}; pack a dataset that "
                      "embeds its images.")
    return bytes(data)


def _whole(root: Path, info: dict[str, Any], features: dict[str, Any]) -> Iterator[Episode]:
    """Version 2: a table and a video a camera for each episode."""
    for entry in _json_lines(root / "meta/episodes.jsonl"):
        number = int(entry["episode_index"])
        place = {"episode_index": number, "episode_chunk": number // int(info.get("chunks_size", 1000))}
        videos = {key: (info["video_path"].format(video_key=key, **place), 0.0)
                  for key, feature in features.items() if feature["dtype"] == "video"}
        yield Episode(number, int(entry["length"]), info["data_path"].format(**place), videos)


def _split(root: Path, info: dict[str, Any], features: dict[str, Any]) -> Iterator[Episode]:
    """Version 3: tables and videos of many episodes, whose places are columns of meta/episodes."""
    video_keys = [key for key, feature in features.items() if feature["dtype"] == "video"]
    paths = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not paths:
        raise LfError(f"{root}/meta/episodes holds no table; copy the dataset again.")
    for path in paths:
        names = [name for name in pq.read_schema(path).names
                 if name in ("episode_index", "length") or name.startswith(("data/", "videos/"))]
        for entry in pq.read_table(path, columns=names).to_pylist():
            videos = {}
            for key in video_keys:
                file, start = _place(entry, f"videos/{key}/"), float(entry[f"videos/{key}/from_timestamp"])
                videos[key] = info["video_path"].format(video_key=key, **file), start
            table = info["data_path"].format(**_place(entry, "data/"))
            yield Episode(int(entry["episode_index"]), int(entry["length"]), table, videos)


def _place(entry: dict[str, Any], prefix: str) -> dict[str, int]:
    return {name: int(entry[prefix + name]) for name in ("chunk_index", "file_index")}


def _tasks(root: Path, version: str) -> dict[int, str]:
    if not version.startswith("v3."):
        return {int(entry["task_index"]): str(entry["task"]) for entry in _json_lines(root / "meta/tasks.jsonl")}
    entries = pq.read_table(root / "meta/tasks.parquet").to_pylist()  # the text is the table's index, of any name
    words = next(name for name in entries[0] if name != "task_index" and isinstance(entries[0][name], str))
    return {int(entry["task_index"]): str(entry[words]) for entry in entries}


def _array(column: pa.ChunkedArray, where: str) -> NDArray[Any]:
    whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    rows, kind, nested = len(whole), whole.type, False
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if pc.count_distinct(pc.list_value_length(whole), mode="all").as_py() > 1:
            raise LfError(f"{where} has lists of several lengths; numbers of one length are needed.")
        whole, nested = whole.flatten(), True
    kind = whole.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)) or whole.null_count:
        raise LfError(f"{where} is of type {column.type} with {whole.null_count} empty places; numbers are needed.")
    values = np.asarray(whole.to_numpy(zero_copy_only=False))
    return values.reshape(rows, -1) if nested else values


def _json(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise LfError(f"{path} can't be read: {error}; copy the dataset again.") from error
    if not isinstance(content, dict):
        raise LfError(f"{path} is no JSON object; copy the dataset again.")
    return content


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
        yield from (orjson.loads(line) for line in lines if line.strip())
    except (OSError, orjson.JSONDecodeError) as error:
        raise LfError(f"{path} can't be read: {error}; copy the dataset again.") from error
