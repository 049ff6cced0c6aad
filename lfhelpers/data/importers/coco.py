"""COCO captions: a JSON of images[] and annotations[] with image_id and caption, and the folder of the images.

The first caption of an image is its txt; all of them are in its json, in the file's order, for whoever picks another
one each epoch.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson

from lfhelpers.data.importers.found import Found, OnBad, Progress, Refused
from lfhelpers.data.importers.images import Row, found
from lfhelpers.errors import LfError


def read(source: Path, *, root: str | os.PathLike[str] | None = None, keep: bool = False, on_bad: OnBad = "refuse",
         jobs: int = 1, progress: Progress = True) -> Found:
    """One sample an image: jpg, txt (the first caption), json (path, id, captions).

    root: the folder of the images; without it, the usual places around `source` are tried. Other options as for a
    folder of images. Raises LfError for a file that isn't of this kind and for what can't be packed.
    """
    content = load(source)
    try:
        rows, refused = _rows(content or {})
    except (KeyError, TypeError, AttributeError) as error:
        raise LfError(f"{source} is no COCO captions file: it needs the lists images (id, file_name) and annotations "
                      "(image_id, caption).") from error
    folder = Path(root or source.parent) if root or not rows else _folder(source, [row.image for row in rows])
    return found(source, folder, "coco", rows, refused, keep=keep, on_bad=on_bad, jobs=jobs, progress=progress)


def load(source: Path) -> dict[str, Any] | None:
    """The file's content, or None where it isn't a JSON object with the lists images and annotations."""
    try:
        content = orjson.loads(source.read_bytes())
    except OSError as error:
        raise LfError(f"{source} can't be read: {error.strerror}.") from error
    except orjson.JSONDecodeError:
        return None
    lists = isinstance(content, dict) and all(isinstance(content.get(name), list) for name in ("images", "annotations"))
    return content if lists else None


def _rows(content: dict[str, Any]) -> tuple[list[Row], Refused]:
    """Images in the file's order with their captions; images without any, captions without an image."""
    captions: dict[Any, list[str]] = defaultdict(list)
    for note in content["annotations"]:
        words = str(note.get("caption") or "").strip()
        if words:
            captions[note.get("image_id")].append(words)
    rows: list[Row] = []
    refused: Refused = []
    seen = set()
    for image in content["images"]:
        number, name = image.get("id"), str(image.get("file_name") or "")
        if number in seen:
            refused.append((name, "duplicated id"))
        elif not name or number not in captions:
            refused.append((name or f"image {number}", "no text" if name else "no image"))
        else:
            rows.append(Row(name, captions[number][0], {"id": number, "captions": captions[number]}))
        seen.add(number)
    refused += [(f"image_id {number}", "no image") for number in captions if number not in seen]
    return rows, refused


def _folder(source: Path, names: list[str]) -> Path:
    """The first usual place that holds one of the first images: captions_train2017.json goes with train2017/."""
    near, subset = source.parent, source.stem.rpartition("_")[2]
    places = [place / inner for place in (near, near.parent) for inner in ("", "images", subset, f"images/{subset}")]
    for place in places:
        if any((place / name).is_file() for name in names[:100]):
            return place
    tried = ", ".join(dict.fromkeys(str(place) for place in places))
    raise LfError(f"none of the first images of {source} is in {tried}; give their folder with root=.")
