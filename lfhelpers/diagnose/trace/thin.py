"""A trace with nothing in it but what a diagnosis reads: small enough to lie beside a project's records.

Flow arrows, memory events and most arguments of kernels are three quarters of what torch writes. Where that is not
enough, the shapes of operators go as well, and with them the rates of kernels; times and launches stay to the last.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.diagnose.trace.document import Document
from lfhelpers.diagnose.trace.read import KINDS
from lfhelpers.diagnose.trace.stream import portions
from lfhelpers.diagnose.trace.values import mapping, nanoseconds
from lfhelpers.errors import LfError

ARGS = ("correlation", "External id", "external id", "device", "stream", "bytes", "Collective name", "In msg nelems",
        "dtype", "Process Group Name", "Seq")
SHAPES = ("Input Dims", "Input type")
HEAD = ("schemaVersion", "distributedInfo", "displayTimeUnit")


def thin(source: Path, target: Path, most: int) -> int:
    """Write `source`'s diagnosis-relevant events to `target`, a .json.gz of at most `most` bytes; returns its bytes.

    Times count from the first event. Raises LfError where even without shapes it is larger.
    """
    document = Document(source)
    events = [event for portion in portions(document) for event in portion if _wanted(event)]
    zero = min((nanoseconds(event["ts"]) for event in events if event["ph"] == "X"), default=0)
    head = {name: document.head[name] for name in HEAD if name in document.head}
    devices = document.head.get("deviceProperties")
    if isinstance(devices, list):
        head["deviceProperties"] = [{"name": mapping(one).get("name")} for one in devices]
    for kept in ((*ARGS, *SHAPES), ARGS):
        content = orjson.dumps(head | {"traceEvents": [_thinned(event, zero, kept) for event in events]})
        packed = gzip.compress(content, 9, mtime=0)
        if len(packed) <= most:
            target.parent.mkdir(parents=True, exist_ok=True)
            runs.write_atomic(target, packed)
            return len(packed)
    raise LfError(f"{source} has {len(packed) / 1e6:.2f} MB when thinned, above {most / 1e6:.2f}: record fewer steps, "
                  "or a smaller case.")


def _wanted(event: Any) -> bool:
    """Work, launches, operators and annotations, and the names of threads."""
    if not isinstance(event, dict):
        return False
    if event.get("ph") == "M":
        return event.get("name") == "thread_name"
    return event.get("ph") == "X" and str(event.get("cat")).lower() in KINDS


def _thinned(event: dict[str, Any], zero: int, kept: tuple[str, ...]) -> dict[str, Any]:
    if event["ph"] == "M":
        return event
    args = mapping(event.get("args"))
    return {**{name: event[name] for name in ("ph", "cat", "name", "pid", "tid")},
            "ts": (nanoseconds(event["ts"]) - zero) / 1e3, "dur": event.get("dur", 0),
            "args": {name: args[name] for name in kept if name in args}}
