"""Images with texts: a folder of pairs (a.jpg beside a.txt), or a table that names images and gives their texts.

A sample is jpg, txt and json, whose "path" says which file it was: keys in shards are numbers, since both readers end a
key at its first dot and one of them loses names that are long or not ASCII.
"""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
from PIL import UnidentifiedImageError

from lfhelpers.data import images
from lfhelpers.data.importers.found import Found, OnBad, Progress, Refused, digest, look, settle, stored
from lfhelpers.errors import LfError

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2",
            ".avif")
TABLES = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".ndjson": ""}
IMAGE_COLUMNS = ("image", "image_path", "path", "file_name", "filename", "file", "filepath", "img")
TEXT_COLUMNS = ("text", "caption", "txt", "prompt", "title", "description")


@dataclass(frozen=True)
class Row:
    """One image file, relative to the root, its text, and what else its json member shall hold."""

    image: str
    text: str
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageTexts:
    """Makes the members of one row: jpg, txt, json. `keep`: images stay as they are, whatever they are."""

    root: Path
    rows: Sequence[Row]
    keep: bool = False

    def __call__(self, index: int) -> dict[str, bytes]:
        row = self.rows[index]
        data = (self.root / row.image).read_bytes()
        data, was = (data, {}) if self.keep else stored(data, row.image)
        about = {"path": printable(row.image), **row.more, **was}
        return {"jpg": data, "txt": row.text.encode(), "json": orjson.dumps(about)}


def read_folder(source: Path, *, keep: bool = False, on_bad: OnBad = "refuse", jobs: int = 1, progress: Progress = True
                ) -> Found:
    """Pairs of an image and a .txt of the same basename, in one folder or in two that hold images and texts alone.

    keep: store images as they are instead of as baseline JPEG. on_bad: "refuse" or "skip" what can't be packed.
    Raises LfError with the counts and the first names of what can't.
    """
    pairs, refused = _pairs(_files(source))
    rows: list[Row] = []
    for image, text in pairs:
        try:
            words = (source / text).read_text("utf-8-sig").strip()
        except UnicodeDecodeError:
            refused.append((text, "text that is not UTF-8"))
            continue
        if words:
            rows.append(Row(image, words))
        else:
            refused.append((text, "empty text"))
    return found(source, source, "images", rows, refused, keep=keep, on_bad=on_bad, jobs=jobs, progress=progress)


def read_table(source: Path, *, image_column: str | None = None, text_column: str | None = None,
               root: str | os.PathLike[str] | None = None, keep: bool = False, on_bad: OnBad = "refuse", jobs: int = 1,
               progress: Progress = True) -> Found:
    """The rows of a CSV, TSV or JSONL file. Columns are found by their usual names unless they are given.

    root: the folder that image paths start from, the table's own by default. Other options as for a folder.
    """
    rows, refused = [], []
    columns: tuple[str, str] | None = None
    for number, entry in _entries(source):
        columns = columns or _columns(source, [name for name in entry if name], image_column, text_column)
        name, words = (str(entry.get(column) or "").strip() for column in columns)
        if name and words:
            rows.append(Row(name, words, {"row": number}))
        else:
            refused.append((f"row {number}", "empty text" if name else "no image"))
    return found(source, Path(root) if root else source.parent, "table", rows, refused, keep=keep, on_bad=on_bad,
                 jobs=jobs, progress=progress)


def found(source: Path, root: Path, kind: str, rows: list[Row], refused: Refused, *, keep: bool, on_bad: OnBad,
          jobs: int, progress: Progress) -> Found:
    """The rows whose images can be read, every one decoded once to know it. Raises LfError as the importers say."""
    reasons = look(_checker(root), [row.image for row in rows], jobs, progress, "images")
    good = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
    refused += [(printable(row.image), reason) for row, reason in zip(rows, reasons, strict=True) if reason]
    counts = settle(str(source), len(good), sorted(refused), on_bad)
    sizes = (f"{row.image}\t{(root / row.image).stat().st_size}\t{row.text}" for row in good)
    about = {"importer": kind, "name": source.name, "keep": keep, "left_out": counts, "content": digest(sizes)}
    return Found(ImageTexts(root.absolute(), good, keep), len(good), about, sorted(refused))


def first_image(source: Path) -> str | None:
    """The first file below a folder that is named as an image, or None; doesn't look at more than it must."""
    for folder, inner, files in os.walk(source):
        inner.sort()
        for name in sorted(files):
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                return printable(Path(folder, name).relative_to(source).as_posix())
    return None


def printable(name: str) -> str:
    """A file name that is not UTF-8 with its odd bytes escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _checker(root: Path) -> Callable[[str], str | None]:
    def check(name: str) -> str | None:
        """Why this image can't be packed, or None."""
        try:
            images.decode((root / name).read_bytes(), name)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return "no image"
        except OSError as error:
            return f"unreadable file: {error.strerror}"
        except LfError as error:
            return "not an image" if isinstance(error.__cause__, UnidentifiedImageError) else "unreadable image"
        return None

    return check


def _files(source: Path) -> list[PurePosixPath]:
    """All files below `source` but hidden ones, sorted, so that the order in a folder's own list doesn't matter."""
    names = []
    for folder, inner, files in os.walk(source):
        inner[:] = [name for name in inner if not name.startswith(".")]
        names += [Path(folder, name).relative_to(source).as_posix() for name in files if not name.startswith(".")]
    return [PurePosixPath(name) for name in sorted(names)]


def _pairs(files: Sequence[PurePosixPath]) -> tuple[list[tuple[str, str]], Refused]:
    """(image, text) of each basename, and what has no partner, or more than one."""
    kinds = {file: _kind(file) for file in files}
    refused: Refused = [(str(file), "not an image") for file in files if kinds[file] == "other"]
    folders: dict[PurePosixPath, set[str]] = defaultdict(set)
    for file in files:
        folders[file.parent].add(kinds[file])
    groups: dict[Any, dict[str, list[str]]] = defaultdict(lambda: {"image": [], "text": []})  # by folder and stem
    for file in files:
        if kinds[file] != "other":
            apart = not {"image", "text"} <= folders[file.parent]  # a folder of images alone, or of texts alone
            groups[None if apart else file.parent, file.stem][kinds[file]].append(str(file))
    pairs = []
    for group in groups.values():
        names = [*group["image"], *group["text"]]
        if len(group["image"]) == len(group["text"]) == 1:
            pairs.append((names[0], names[1]))
        elif group["image"] and group["text"]:
            refused += [(name, "duplicated basename") for name in names]
        else:
            refused += [(name, "no text" if group["image"] else "no image") for name in names]
    return sorted(pairs), refused


def _kind(file: PurePosixPath) -> str:
    suffix = file.suffix.lower()
    return "text" if suffix == ".txt" else "image" if suffix in SUFFIXES else "other"


def _entries(source: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number from 1, columns) of each row. Raises LfError for a line that is no row."""
    delimiter = TABLES.get(source.suffix.lower())
    if delimiter is None:
        raise LfError(f"{source} is no table; give a file of {', '.join(TABLES)}.")
    try:
        text = source.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LfError(f"{source} can't be read: {error}; give a UTF-8 file.") from error
    if delimiter:
        try:
            yield from enumerate(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter), 1)
        except csv.Error as error:
            raise LfError(f"{source} is no table: {error}.") from error
        return
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() would also split inside some texts
        if line.strip():
            try:
                entry = orjson.loads(line)
                assert isinstance(entry, dict)
            except (orjson.JSONDecodeError, AssertionError) as error:
                raise LfError(f"{source}, line {number} is no JSON object; mend or remove it.") from error
            yield number, entry


def _columns(source: Path, known: Sequence[str], image: str | None, text: str | None) -> tuple[str, str]:
    """The names of the two columns, as they are in the table."""
    names = []
    for option, given, usual in (("image_column", image, IMAGE_COLUMNS), ("text_column", text, TEXT_COLUMNS)):
        match = [name for name in known if name == given] if given else [name for name in known if name in usual]
        if not match:
            raise LfError(f"{source} has no column {given or ' or '.join(usual)}; its columns are {', '.join(known)}: "
                          f"name one with {option}=.")
        names.append(min(match, key=usual.index) if not given else match[0])
    return names[0], names[1]
