"""Data that users bring, packed into our shards: folders and tables of images, COCO captions, LeRobot datasets.

    importers.pack("photos", "data/photos", jobs=8)
    importers.pack("recordings/so100", "data/so100", every=2, chunk=(16, 7))

The source is only read. Packing goes through data.shards: an interrupted call goes on to the same bytes.
"""

from __future__ import annotations

import importlib
import inspect
import os
from pathlib import Path
from typing import Any

from lfhelpers.data import shards
from lfhelpers.data.importers import coco, images
from lfhelpers.data.importers.found import Found, Progress, summary
from lfhelpers.data.manifest import Manifest
from lfhelpers.errors import LfError, nearest

KINDS = {"images": "images:read_folder", "table": "images:read_table", "coco": "coco:read", "lerobot": "lerobot:read"}
HF_TABLES = ("metadata.csv", "metadata.jsonl")  # the name that Hugging Face's image folders give to their table


def pack(source: str | os.PathLike[str], out: str | os.PathLike[str], *, kind: str | None = None,
         shard_mb: float = 1024, jobs: int = 1, readers: int = 4, progress: Progress = True, **options: Any
         ) -> Manifest:
    """Pack a user's dataset into the folder `out`, and say what it was taken for and what was left out.

    kind: images, table, coco or lerobot; found by looking at `source` where none is given.
    options: those of the kind's importer, on_bad="skip" among them: images.read_folder, images.read_table, coco.read,
    lerobot.read. shard_mb, jobs, readers, progress: as for shards.write.
    Raises LfError for an unknown source or option, for what the importer refuses, and as shards.write does.
    """
    place, target = Path(source).absolute(), Path(out).absolute()
    if place.is_dir() and target.resolve().is_relative_to(place.resolve()):
        raise LfError(f"{target} lies in {place}, which is only read; choose a folder outside.")
    found = read(place, kind=kind, jobs=jobs, progress=progress, **options)
    for note in found.notes:
        print(note, flush=True)
    return shards.write(target, found.sample, found.samples, shard_mb=shard_mb, jobs=jobs, source=found.source,
                        readers=readers, progress=progress)


def read(source: str | os.PathLike[str], *, kind: str | None = None, jobs: int = 1, progress: Progress = True,
         **options: Any) -> Found:
    """What `pack` would write, looked through and checked; all that is left out is in its `refused`."""
    place = Path(source).absolute()
    kind, reason = (kind, "you said so") if kind else detect(place)
    if kind not in KINDS:
        raise LfError(f"kind = '{kind}' is none that can be packed; {nearest(kind, KINDS)}")
    place = next((place / name for name in HF_TABLES if kind == "table" and (place / name).is_file()), place)
    if not place.exists():
        raise LfError(f"there is no {place}; give a folder or a file of data.")
    module, _, name = KINDS[kind].partition(":")
    importer = getattr(importlib.import_module(f"lfhelpers.data.importers.{module}"), name)
    known = set(inspect.signature(importer).parameters) - {"source"}
    for option in options.keys() - known:
        raise LfError(f"the kind {kind} has no option '{option}'; {nearest(option, known)}")
    found: Found = importer(place, jobs=jobs, progress=progress, **options)
    lines = [f"{place.name} is packed as {kind}: {reason}", *found.notes]
    if found.refused:
        lines.append(f"{place.name} has {summary(found.refused)}; they are left out")
    return Found(found.sample, found.samples, found.source, found.refused, lines)


def detect(source: Path) -> tuple[str, str]:
    """(kind, why it is taken for that). Raises LfError naming what was looked for."""
    if not source.exists():
        raise LfError(f"there is no {source}; give a folder or a file of data.")
    suffix = source.suffix.lower()
    if source.is_file():
        if suffix in images.TABLES:
            return "table", f"it is a {suffix} file"
        if suffix == ".json" and coco.load(source) is not None:
            return "coco", "it is a JSON with images and annotations"
    else:
        if (source / "meta/info.json").is_file():
            return "lerobot", "it has a meta/info.json"
        for name in HF_TABLES:
            if (source / name).is_file():
                return "table", f"it has a {name}"
        if image := images.first_image(source):
            return "images", f"it has images, {image} for one, and no meta/info.json"
        if next(source.rglob("*.tar"), None):
            raise LfError(f"{source} holds tar files: shards, not raw data; check them with `lfhelpers data lint`.")
    raise LfError(f"{source} is nothing that can be packed: looked for a folder with meta/info.json (LeRobot) or with "
                  "images, a .json with images and annotations (COCO captions), and a .csv, .tsv or .jsonl table.")
