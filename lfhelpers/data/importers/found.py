"""What importers share: what they return, what happens to files that can't be packed, and how an image is stored.

Everything is looked at before the first byte is written: the number of samples must be known for an interrupted packing
to go on to the same bytes, and a damaged file is better found before an hour of work than in it. The price is that
every image is read and decoded twice.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypeVar

from PIL import ExifTags, Image
from tqdm import tqdm

from lfhelpers.data import images
from lfhelpers.data.tar import Sample
from lfhelpers.errors import LfError

Refused = list[tuple[str, str]]  # (file or episode, reason)
OnBad = Literal["refuse", "skip"]
Progress = bool | Literal["always"]
Item = TypeVar("Item")
Result = TypeVar("Result")

QUALITY = 95
BLOCK = 4096  # items handed to the threads at a time
BASELINE = 0xC0  # the marker of a baseline frame, the only kind that hardware decoders take


@dataclass(frozen=True)
class Found:
    """Samples ready for shards.write: sample(0) .. sample(samples - 1), and `source` for the manifest.

    refused: every file or episode that is left out, with the reason. notes: what people should know, a line each.
    """

    sample: Sample
    samples: int
    source: dict[str, Any]
    refused: Refused = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def settle(what: str, left: int, refused: Refused, on_bad: OnBad) -> dict[str, int]:
    """The count of each reason, for the manifest. Raises LfError for refused files unless `on_bad` is "skip", and where
    nothing is left to pack."""
    if on_bad not in ("refuse", "skip"):
        raise LfError(f"on_bad = '{on_bad}' is neither 'refuse' nor 'skip'.")
    if refused and on_bad == "refuse":
        raise LfError(f"{what} has {summary(refused, names=3)}; mend them, or leave them out with on_bad='skip'.")
    if not left:
        raise LfError(f"{what} has nothing to pack" + (f": {summary(refused, names=3)}." if refused else "."))
    return {reason: len(names) for reason, names in _by_reason(refused).items()}


def summary(refused: Refused, names: int = 10) -> str:
    """One line: how many can't be packed, by reason, with the first `names` of each."""
    parts = [f"{len(all_names)} {reason} ({', '.join(all_names[:names])}{', ...' if len(all_names) > names else ''})"
             for reason, all_names in _by_reason(refused).items()]
    return f"{len(refused)} that can't be packed: {', '.join(parts)}"


def look(task: Callable[[Item], Result], items: Sequence[Item], jobs: int, progress: Progress, unit: str
         ) -> list[Result]:
    """task(item) of all items in order, by `jobs` threads: Pillow, Arrow and FFmpeg let them run side by side."""
    disable = None if progress is True else not progress
    results: list[Result] = []
    waiting = iter(items)
    with (ThreadPoolExecutor(max(jobs, 1)) as pool,
          tqdm(total=len(items), unit=f" {unit}", desc="checking", disable=disable) as bar):
        while block := list(islice(waiting, BLOCK)):
            for result in pool.map(task, block):
                results.append(result)
                bar.update()
    return results


def digest(lines: Iterable[str]) -> str:
    """16 hex digits of some lines: two sources with the same one are taken for the same."""
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return total.hexdigest()[:16]


def stored(data: bytes, where: str) -> tuple[bytes, dict[str, Any]]:
    """(JPEG, what it was): upright baseline 8-bit JPEGs stay as they are, everything else is decoded and made one.

    Every decoder, and a GPU's hardware too, then gives the same pixels. Raises LfError where it is no whole image.
    """
    if plain(data):
        return data, {}
    raw = Image.open(io.BytesIO(data))
    was = {"format": raw.format, "mode": raw.mode, "orientation": raw.getexif().get(ExifTags.Base.Orientation, 1)}
    return jpeg(images.decode(data, where)), {"original": was}


def jpeg(image: Image.Image) -> bytes:
    """An RGB image as baseline JPEG of quality 95, without EXIF."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def plain(data: bytes) -> bool:
    """Whether these bytes are a baseline 8-bit YCbCr JPEG that needs no turning."""
    try:
        image = Image.open(io.BytesIO(data))
        return (image.format == "JPEG" and image.mode == "RGB" and _frame_marker(data) == BASELINE
                and image.info.get("adobe_transform", 1) == 1  # 0: its three channels are RGB
                and image.getexif().get(ExifTags.Base.Orientation, 1) == 1)
    except Exception:  # as in images.decode, which then says what is wrong
        return False


def _frame_marker(data: bytes) -> int:
    """The marker that begins the frame of a JPEG: C0 baseline, C1 extended, C2 progressive and so on; 0 if none."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # those are tables
            return marker
        filler = marker == 0xFF  # any number of FF may stand before a marker
        position += 1 if filler else 2 + int.from_bytes(data[position + 2:position + 4], "big")
    return 0


def _by_reason(refused: Refused) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in refused:
        reasons.setdefault(reason, []).append(name)
    return dict(sorted(reasons.items()))
