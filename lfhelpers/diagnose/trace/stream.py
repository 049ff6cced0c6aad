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
from typing import Any

import orjson
from tqdm import tqdm

from lfhelpers.diagnose.trace.document import BLANKED, Document, head, tail
from lfhelpers.errors import LfError

BAR_AFTER = 1.0
"""Seconds of reading before a bar is shown."""
READ = 1 << 16
"""Bytes of a file, and of what a gzip unpacks to, at once: what comes with a damaged spot is lost."""
PORTION = 1 << 22
"""Bytes of JSON parsed at once."""
LARGEST_EVENT = 1 << 20
BETWEEN = re.compile(rb"\}\s*,\s*\Z")
BETWEEN_TEXT = re.compile(r"\}\s*,\s*(?=\{)")
EXACT = re.compile(rb'("ts"\s*:\s*)(\d{13,}\.\d+)')
"""Microseconds since 1970 with a fraction: a double can't hold them to the nanosecond, so they travel as text."""
LISTS_BEHIND = 4
"""Lists behind that of the events that may end like it, before the file's end is read event by event."""
MENDED = re.compile(r"[\x00-\x08\x0e-\x1f\ufffd]")
DECODER = json.JSONDecoder(strict=False)


def portions(document: Document) -> Iterator[list[Any]]:
    """The events of document.path, a list at a time; a bar on a terminal shows a long reading.

    LfError where the file holds no list of events, in one sentence that says what it holds.
    """
    blocks = _opened(document)
    buffer = head(document, blocks)
    exact = False
    final = False
    while buffer or not final:
        buffer, final = _filled(buffer, blocks)
        exact = exact or EXACT.search(buffer) is not None
        events, buffer, ended = _portion(document, buffer, exact, final)
        yield events
        if ended:
            tail(document, buffer + b"".join(blocks))
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
    with file, tqdm(total=size, unit="B", unit_scale=True, desc=document.path.name, disable=None, delay=BAR_AFTER,
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


def _portion(document: Document, buffer: bytes, exact: bool, final: bool) -> tuple[list[Any], bytes, bool]:
    """(events, bytes for the next portion, whether the list of events has ended)."""
    if final and (found := _last(document, buffer, exact)) is not None:
        return *found, True
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


def _last(document: Document, buffer: bytes, exact: bool) -> tuple[list[Any], bytes] | None:
    """(events up to the end of their list, what stands behind it); None where no end is found."""
    place = len(buffer)
    for _ in range(LISTS_BEHIND):
        place = buffer.rfind(b"]", 0, place)
        if place < 0:
            return None
        if buffer[:place].rstrip().endswith(b"}"):
            events = _parsed(document, buffer[:place], exact)
            if events is not None:
                return events, buffer[place + 1:]
    return None


def _quoted(portion: bytes) -> bytes:
    """With exact times as text. Splitting and joining takes half the time of a substitution with groups."""
    parts = EXACT.split(portion)
    parts[2::3] = [b'"%b"' % value for value in parts[2::3]]
    return b"".join(parts)


def _parsed(document: Document, portion: bytes, exact: bool) -> list[Any] | None:
    """A portion as a list, mended if need be; None where it is no list of events."""
    if exact:
        portion = _quoted(portion)
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
        buffer = _quoted(buffer)
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
