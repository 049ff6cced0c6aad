"""What stands around the events of a trace file, and what a file is that holds none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lfhelpers.errors import LfError

LARGEST_HEAD = 1 << 24
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
BLANKED = bytes(max(byte, 32) for byte in range(256))
"""Turns control bytes into spaces, which between tokens mean the same."""
WHAT = "A profiler trace is what torch.profiler's export_chrome_trace writes"


@dataclass
class Document:
    """What stands around the events, and what was wrong with the file; complete when all portions have been taken."""

    path: Path
    head: dict[str, Any] = field(default_factory=dict)
    bare: bool = False
    cut: bool = False
    damage: list[str] = field(default_factory=list)
    unreadable: int = 0
    mended: bool = False


def head(document: Document, blocks: Iterator[bytes]) -> bytes:
    """Read up to the first event and keep what stands before; returns what has been read beyond."""
    buffer = b""
    for block in blocks:
        looked = max(0, len(buffer) - 64)
        buffer += block
        start = buffer[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if start == b"[":
            document.bare = True
            return buffer[buffer.index(b"[") + 1:]
        if found := EVENTS.search(buffer, looked):
            document.head = _object(buffer[:found.start()].removeprefix(b"\xef\xbb\xbf").rstrip().rstrip(b",") + b"}")
            return buffer[found.end():]
        if len(buffer) > LARGEST_HEAD or start not in (b"", b"{"):
            break
    raise LfError(_refusal(document, buffer))


def _refusal(document: Document, buffer: bytes) -> str:
    """One sentence on a file without a list of events."""
    start = buffer.removeprefix(b"\xef\xbb\xbf").lstrip()[:24]
    damage = f" ({document.damage[0]})" if document.damage else ""
    if not start:
        return f"{document.path} is empty{damage}. {WHAT}."
    if not start.startswith(b"{"):
        return f"{document.path} is not JSON: it begins with {start.decode('utf-8', 'replace')!r}{damage}. {WHAT}."
    if re.search(rb'"nodes"\s*:\s*\[', buffer):
        return (f"{document.path} is an execution trace: it holds operators and no times{damage}. {WHAT}; "
                "ExecutionTraceObserver writes the other kind.")
    return f"{document.path} holds no list of traceEvents{damage}. {WHAT}."


def tail(document: Document, rest: bytes) -> None:
    """Keep what stands behind the events, as far as it was read: the last megabytes hold a few plain fields."""
    fields = _object(b"{" + rest.strip().lstrip(b","))
    document.head = fields | document.head


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object, or {} where it is damaged: what it tells is wanted but not needed."""
    try:
        value = json.loads(text.translate(BLANKED).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
