"""Events of a trace file in portions, whatever state the file is in: plain or gzip, cut short, damaged, very large.

A whole file through one parser would need many times its size in memory, and one bad byte would lose everything. So the
list of events is cut into portions of a few megabytes between two events. Whether a cut was right needs no scanner of
strings and brackets: a portion that parses as a list was cut between events. A portion that doesn't is mended (control
bytes, broken UTF-8) and, failing that, read event by event, where what can't be read is counted and left out.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from lfhelpers.errors import LfError

READ = 1 << 16
"""Bytes of a file, and of what a gzip unpacks to, at once: what comes with a damaged spot is lost."""
PORTION = 1 << 22
"""Bytes of JSON parsed at once."""
LARGEST_EVENT = 1 << 20
LARGEST_HEAD = 1 << 24
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(rb"\}\s*,\s*\Z")
BETWEEN_TEXT = re.compile(r"\}\s*,\s*(?=\{)")
EXACT = re.compile(rb'("ts"\s*:\s*)(\d{13,}\.\d+)')
"""Microseconds since 1970 with a fraction: a double can't hold them to the nanosecond, so they travel as text."""
BLANKED = bytes(max(byte, 32) for byte in range(256))
"""Turns control bytes into spaces, which between tokens mean the same."""
MENDED = re.compile(r"[\x00-\x08\x0e-\x1f\ufffd]")
DECODER = json.JSONDecoder(strict=False)
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


def portions(document: Document) -> Iterator[list[Any]]:
    """The events of document.path, a list at a time; a bar on a terminal shows a long reading.

    LfError where the file holds no list of events, in one sentence that says what it holds.
    """
    blocks = _opened(document)
    buffer = _head(document, blocks)
    exact = False
    final = False
    while buffer or not final:
        buffer, final = _filled(buffer, blocks)
        exact = exact or EXACT.search(buffer) is not None
        events, buffer, ended = _portion(document, buffer, exact, final)
        yield events
        if ended:
            _tail(document, buffer + b"".join(blocks))
            return
    document.cut = True


def _opened(document: Document) -> Iterator[bytes]:
    """Blocks of the file's content, unpacked where it is a gzip; LfError where it can't be opened."""
    try:
        return _blocks(document, document.path.open("rb"), document.path.stat().st_size)
    except OSError as error:
        raise LfError(f"{document.path} can't be read: {error.strerror}.") from error


def _filled(buffer: bytes, blocks: Iterator[bytes]) -> tuple[bytes, bool]:
    """The buffer with at least one more block, up to a portion; and whether the file has ended."""
    parts, size = [buffer], len(buffer)
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size >= PORTION:
            return b"".join(parts), False
    return b"".join(parts), True


def _blocks(document: Document, file: Any, size: int) -> Iterator[bytes]:
    with file, tqdm(total=size, unit="B", unit_scale=True, desc=document.path.name, disable=None, delay=1,
                    leave=False) as bar:
        engine: Any = None
        first = True
        while raw := file.read(READ):
            bar.update(len(raw))
            if first and raw.startswith(b"\x1f\x8b"):
                engine = zlib.decompressobj(31)
            first = False
            if engine is None:
                yield raw
                continue
            try:
                engine = yield from _inflated(engine, raw)
            except zlib.error as error:
                document.damage.append(f"its gzip is damaged ({error})")
                return
        if engine is not None and not engine.eof:
            document.damage.append("its gzip ends early")


def _inflated(engine: Any, raw: bytes) -> Generator[bytes, None, Any]:
    """What `raw` unpacks to; returns the engine to go on with, as a gzip may hold several members."""
    while raw:
        if engine.eof:
            engine = zlib.decompressobj(31)
        yield engine.decompress(raw, READ)
        raw = engine.unconsumed_tail or engine.unused_data.lstrip(b"\0")
    return engine


def _head(document: Document, blocks: Iterator[bytes]) -> bytes:
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


def _portion(document: Document, buffer: bytes, exact: bool, final: bool) -> tuple[list[Any], bytes, bool]:
    """(events, bytes for the next portion, whether the list of events has ended)."""
    place = len(buffer)
    for _ in range(1 if final else 3):
        place = buffer.rfind(b"{", 0, place)
        if place < 0:
            break
        before = BETWEEN.search(buffer, max(0, place - 256), place)
        if before is None:
            continue
        events = _parsed(document, buffer[:before.start() + 1], exact)
        if events is not None:
            return events, buffer[place:], False
    return _one_by_one(document, buffer, exact, final)


def _parsed(document: Document, portion: bytes, exact: bool) -> list[Any] | None:
    """A portion as a list, mended if need be; None where it is no list of events."""
    if exact:
        portion = EXACT.sub(rb'\1"\2"', portion)
    try:
        return list(orjson.loads(b"[" + portion.lstrip(b" \t\r\n,") + b"]"))
    except orjson.JSONDecodeError:
        pass
    text = portion.lstrip(b" \t\r\n,").translate(BLANKED).decode("utf-8", "replace")
    try:
        events = list(orjson.loads(f"[{text}]"))
    except orjson.JSONDecodeError:
        return None
    document.mended = True
    return events


def _one_by_one(document: Document, buffer: bytes, exact: bool, final: bool) -> tuple[list[Any], bytes, bool]:
    """Like _portion, event by event: slow, and stopped by nothing but the end of the list or of the bytes."""
    if exact:
        buffer = EXACT.sub(rb'\1"\2"', buffer)
    text = buffer.decode("utf-8", "replace")
    document.mended = document.mended or MENDED.search(text) is not None
    events: list[Any] = []
    place = 0
    while True:
        place = _skipped(text, place)
        if place >= len(text):
            return events, b"", False
        if text[place] == "]":
            return events, text[place + 1:].encode(), True
        try:
            event, place = DECODER.raw_decode(text, place)
            events.append(event)
        except (ValueError, RecursionError):
            following = BETWEEN_TEXT.search(text, place)
            waiting = not final and place > len(text) - LARGEST_EVENT
            if following is None or waiting:
                document.unreadable += final
                return events, b"" if final else text[place:].encode(), False
            document.unreadable += 1
            place = following.end()


def _skipped(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,":
        place += 1
    return place


def _tail(document: Document, rest: bytes) -> None:
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
