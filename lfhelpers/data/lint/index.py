"""DALI's index of a shard (wds2idx v1.2): whether it fits its tar, and writing it anew.

An index that doesn't fit is worse than none: DALI then hands out other bytes without a word. DALI's own wds2idx writes
such an index where a tar has GNU long names: it gives the place of the name's header as that of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lfhelpers.data.lint.headers import Damage, Entry, members, split
from lfhelpers.data.lint.scan import Data
from lfhelpers.errors import LfError
from lfhelpers.runs import write_atomic

VERSION = "v1.2"


def rebuild_index(tar: Path) -> Path:
    """Write the index beside a tar anew, as wds2idx should; returns its place. LfError for a tar that isn't whole."""
    try:
        with Data(tar, whole=False) as data:
            samples = _grouped(list(members(data)))
    except (Damage, OSError) as error:
        raise LfError(f"{tar} {error}; an index of it would be wrong: copy it again, or repack it.") from error
    lines = [" ".join(f"{ext} {entry.offset} {entry.size} {entry.name}" for ext, entry in sample) for sample in samples]
    place = tar.with_suffix(".idx")
    write_atomic(place, "\n".join([f"{VERSION} {len(lines)}", *lines, ""]).encode(errors="surrogateescape"))
    return place


def _grouped(entries: Sequence[Entry]) -> list[list[tuple[str, Entry]]]:
    """Members as DALI groups them: neighbours of one key; (extension, member) each."""
    samples: list[list[tuple[str, Entry]]] = []
    last = None
    for entry in entries:
        parts = split(entry.name) if entry.what == "file" and not hidden(entry.name) else None
        if parts is None:
            continue
        if parts[0] != last:
            samples.append([])
            last = parts[0]
        samples[-1].append((parts[1], entry))
    return samples


def hidden(name: str) -> bool:
    """Whether the last part of the path begins with a dot."""
    return name.rpartition("/")[2].startswith(".")


def check(tar: Path, entries: Sequence[Entry]) -> tuple[str, str] | None:
    """(kind of finding, sentence) where the index beside the tar doesn't fit its members or is older; else None."""
    index = tar.with_suffix(".idx")
    try:
        listed = _listed(index.read_text(errors="surrogateescape"))
        older = index.stat().st_mtime_ns < tar.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return "index_mismatch", f"is no index that DALI knows: {error}"
    for entry in entries:
        parts = split(entry.name)
        if entry.what != "file" or parts is None or hidden(entry.name):
            listed.pop(entry.offset, None)
        elif listed.pop(entry.offset, None) != (parts[1], entry.size):
            return "index_mismatch", f"doesn't list {entry.name} with {entry.size} bytes at byte {entry.offset}"
    if listed:
        return "index_mismatch", f"lists data at byte {min(listed)}, where no member lies"
    return ("index_old", "is older than its tar") if older else None


def _listed(text: str) -> dict[int, tuple[str, int]]:
    """Extension and size by offset. Raises ValueError where the text is no index, or has not the lines that it says."""
    head, *lines = text.split("\n")
    version, count = head.split()
    width = {"v1.1": 3, VERSION: 4}.get(version, 0)
    lines = [line for line in lines if line]
    if not width or int(count) != len(lines):
        raise ValueError(f"its head is '{head}', and it has {len(lines)} lines")
    listed = {}
    for line in lines:
        words = line.split(" ")
        for start in range(0, len(words) - 2, width):
            listed[int(words[start + 1])] = words[start], int(words[start + 2])
    return listed
