"""A Kineto or Chrome trace as columns of numbers: times in integer nanoseconds, names and lanes by index.

What a report needs of two million events fits into 150 MB this way; as Python objects they would be gigabytes. Only
complete events ("X") of the categories below are kept. Names of categories changed over the years and differ between
vendors, so they are compared in lower case, by a table that also knows the old ones.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace import shapes
from lfhelpers.diagnose.trace.document import Document
from lfhelpers.diagnose.trace.stream import portions
from lfhelpers.diagnose.trace.values import LARGEST, integer, mapping, nanoseconds
from lfhelpers.errors import LfError

KERNEL, COPY, MEMSET, LAUNCH, OPERATOR, ANNOTATION, GPU_ANNOTATION, OVERHEAD = range(8)
KINDS = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": MEMSET, "memset": MEMSET,
    "cuda_runtime": LAUNCH, "runtime": LAUNCH, "cuda_driver": LAUNCH, "driver": LAUNCH, "hip_runtime": LAUNCH,
    "xpu_runtime": LAUNCH, "privateuse1_runtime": LAUNCH, "privateuse1_driver": LAUNCH,
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION, "gpu_user_annotation": GPU_ANNOTATION,
    "overhead": OVERHEAD,
}
"""Category to kind. A gpu_user_annotation spans kernels and the gaps between them, so it is never work of the GPU."""
GPU_WORK = (KERNEL, COPY, MEMSET)
WIDTH = 8
"""Numbers kept of an event."""
RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_]?(\d+)", re.IGNORECASE)


class Lane(NamedTuple):
    """A thread of the host (a process and a thread) or a stream of a GPU (a device and a stream)."""

    gpu: bool
    place: str
    name: str


class Collective(NamedTuple):
    """What a communication kernel's arguments tell; "" and 0 where they don't."""

    name: str
    group: str
    sequence: int
    elements: int
    dtype: str


@dataclass(frozen=True)
class Trace:
    """One rank's trace. Columns are int64 [n], sorted by start: start and end in ns since the trace's first event."""

    path: Path
    head: Mapping[str, Any]
    names: list[str]
    lanes: list[Lane]
    kind: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    lane: NDArray[np.int64]
    correlation: NDArray[np.int64]
    """What ties work of a GPU to its launch; 0 where nothing does."""
    external: NDArray[np.int64]
    """What ties work to the operator that it was launched in; 0 where nothing does."""
    size: NDArray[np.int64]
    """Bytes of a copy; 0 elsewhere."""
    collectives: Mapping[int, Collective]
    """By row."""
    work: shapes.Work
    rank: int | None
    events: int
    notes: tuple[str, ...]

    def rows(self, *kinds: int) -> NDArray[np.int64]:
        """The rows of these kinds, in order of their start."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """bool [n]: the rows whose name holds the pattern."""
        hits = np.fromiter((pattern.search(name) is not None for name in self.names), bool, len(self.names))
        return hits[self.name] if len(self.names) else np.zeros(0, bool)

    @property
    def world(self) -> int | None:
        """Ranks of the job, or None where the trace doesn't say."""
        size = mapping(self.head.get("distributedInfo")).get("world_size")
        return size if isinstance(size, int) and size > 0 else None

    @property
    def gpu(self) -> str | None:
        """The first GPU's name, or None."""
        properties = self.head.get("deviceProperties")
        first = properties[0] if isinstance(properties, list) and properties else None
        name = mapping(first).get("name")
        return str(name) if name else None


@dataclass
class _Columns:
    """What `read` gathers."""

    names: dict[str, int] = field(default_factory=dict)
    lanes: dict[tuple[bool, Any, Any], int] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)
    rows: array[int] = field(default_factory=lambda: array("q"))
    """WIDTH numbers a row, one array for all: growing eight of them takes twice as long as all else of an event."""
    collectives: dict[int, Collective] = field(default_factory=dict)
    work: shapes.Gathered = field(default_factory=shapes.Gathered)
    events: int = 0
    odd: int = 0
    unpaired: int = 0
    stacks: bool = False

    def take(self, events: list[Any]) -> None:
        """Keep what is wanted of a portion; what has no sense is counted."""
        for event in events:
            try:
                self._event(event)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                self.odd += 1
        self.events += len(events)

    def _event(self, event: dict[str, Any]) -> None:
        phase = event.get("ph")
        if phase != "X":
            if phase == "M" and event.get("name") == "thread_name":
                self.threads[str(event["pid"]), str(event["tid"])] = str(event["args"]["name"])
            self.unpaired += phase in ("B", "E")
            return
        category = event.get("cat")
        kind = KINDS.get(category) if category.__class__ is str else None
        if kind is None:
            kind = KINDS.get(str(category).lower())
            if kind is None:
                self.stacks = self.stacks or category == "python_function"
                return
        args = event.get("args") or {}
        start, length = nanoseconds(event["ts"]), nanoseconds(event.get("dur", 0))
        if not -LARGEST < start < LARGEST or not 0 <= length < LARGEST:
            raise ValueError("a time that can't be")
        on_gpu = kind in GPU_WORK or kind == GPU_ANNOTATION
        lane = (True, args.get("device", event["pid"]), args.get("stream", event["tid"])) if on_gpu else \
            (False, event["pid"], event["tid"])
        external = integer(args.get("External id", args.get("external id", 0)))
        row = len(self.rows) // WIDTH
        if kind == KERNEL and "Collective name" in args:
            self.collectives[row] = _collective(args)
        elif kind == OPERATOR and external and "Input Dims" in args:
            self.work.add(event["name"], external, args["Input Dims"], args.get("Input type"))
        self.rows.extend((kind, start, start + length, self.names.setdefault(str(event["name"]), len(self.names)),
                          self.lanes.setdefault(lane, len(self.lanes)), integer(args.get("correlation", 0)), external,
                          integer(args.get("bytes", 0)) if kind in (COPY, MEMSET) else 0))


def read(path: Path) -> Trace:
    """Read a trace, .json or .json.gz; LfError in one sentence where the file is none.

    What was damaged, cut or left out stands in the trace's notes.
    """
    document, gathered = Document(path), _Columns()
    for events in portions(document):
        gathered.take(events)
    if not gathered.rows:
        raise LfError(f"{path} holds no operator, launch or kernel among its {gathered.events:,} events"
                      f"{''.join(f'; {text}' for text in document.damage)}; record it with torch.profiler's "
                      "activities CPU and CUDA.")
    return _trace(document, gathered)


def _trace(document: Document, gathered: _Columns) -> Trace:
    rows = np.frombuffer(gathered.rows, np.int64).reshape(-1, WIDTH)
    order = np.argsort(rows[:, 1], kind="stable")
    kind, start, end, name, lane, correlation, external, size = (column[order] for column in rows.T)
    zero = int(start[0])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    collectives = {int(place[row]): found for row, found in gathered.collectives.items()}
    lanes = [_lane(gathered, *key) for key in gathered.lanes]
    rank, said = _rank(document)
    notes = (*_notes(document, gathered), *said)
    return Trace(document.path, document.head, list(gathered.names), lanes, kind, start - zero, end - zero, name, lane,
                 correlation, external, size, collectives, gathered.work.done(), rank, gathered.events, notes)


def _lane(gathered: _Columns, gpu: bool, place: Any, line: Any) -> Lane:
    text = str(line).removeprefix("stream ").strip() if gpu else str(line)
    name = f"stream {text}" if gpu else gathered.threads.get((str(place), text), f"thread {text}")
    return Lane(gpu, str(place), name)


def _rank(document: Document) -> tuple[int | None, list[str]]:
    """The rank by what the trace says, or else by its file's name, with a note on where it comes from."""
    said = mapping(document.head.get("distributedInfo")).get("rank")
    if isinstance(said, int) and not isinstance(said, bool):
        return said, []
    found = RANK_IN_NAME.search(document.path.name)
    if found:
        return int(found[1]), []
    return None, ["the trace names no rank, so it is read as one rank alone"]


def _notes(document: Document, gathered: _Columns) -> list[str]:
    notes = [f"the file is damaged: {text}; what was read before that is reported" for text in document.damage]
    if document.cut and not document.damage and not document.bare:
        notes.append("the file ends in the middle: what stands before the cut is reported")
    if document.mended:
        notes.append("the file holds raw control bytes or broken UTF-8, which were replaced")
    if document.unreadable:
        notes.append(f"{document.unreadable:,} events can't be read and were left out")
    if gathered.odd:
        notes.append(f"{gathered.odd:,} events have fields without sense (a time beyond 64 bits, no time, no name) and "
                     "were left out")
    if document.bare:
        notes.append("the file is a bare list of events: it doesn't say which rank and GPU it is from")
    if gathered.unpaired:
        notes.append(f"{gathered.unpaired:,} begin and end events were left out: no profiler of torch writes them")
    if gathered.stacks:
        notes.append("it was recorded with Python stacks, which slow the host: host causes are overstated")
    return notes


def _collective(args: Mapping[str, Any]) -> Collective:
    return Collective(str(args["Collective name"]), str(args.get("Process Group Name", "")),
                      integer(args.get("Seq", args.get("seq", -1))),
                      integer(args.get("In msg nelems", 0)), str(args.get("dtype", "")))
