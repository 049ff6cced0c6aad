"""A few milliseconds of a step as they happened: what the host did and what ran on the device, on one axis of time.

A trace of a whole step is megabytes that nobody looks at, and its point is in any few milliseconds of it: kernels that
are shorter than the host's way to the next launch leave the GPU idle between them. On a CPU, which launches nothing,
such gaps lie between operators. The profiler slows the host: gaps are wider here than in a step that nobody watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from lfhelpers.errors import LfError
from lfhelpers.measure import intervals, record

HOST = "host"


class Span(NamedTuple):
    """Something that ran in a lane (`host`, `stream 7`), in microseconds of one clock."""

    lane: str
    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """Windows of steps by label, all of one length, and what they were recorded on."""

    windows: dict[str, list[Span]]
    length_us: float
    facts: dict[str, Any]


def operators(step: Callable[[], object]) -> list[Span]:
    """Run `step` once under the profiler; its outermost operators on the host, in the order of their beginnings.

    What lies between them is Python and autograd. Of an operator, what it calls inside is left out.
    """
    from torch.profiler import ProfilerActivity, profile  # a page that only draws needs no torch

    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        step()
    return sorted((span_of(event, HOST) for event in outermost(profiled.events() or [])),
                  key=lambda span: span.start_us)


def outermost(events: Iterable[Any]) -> list[Any]:
    """torch.profiler's events of operators that no other operator called: what Python and autograd asked for."""
    return [event for event in events if _is_operator(event)
            and not (event.cpu_parent and _is_operator(event.cpu_parent))]


def span_of(event: Any, lane: str = "") -> Span:
    """One of torch.profiler's events."""
    return Span(lane, event.name, event.time_range.start, event.time_range.end)


def window(found: Sequence[Span], length_us: float, start_us: float = 0.0) -> list[Span]:
    """What ran in `length_us` from `start_us` after the first beginning on, cut to that time, which begins at 0."""
    begin = min(span.start_us for span in found) + start_us
    return [Span(span.lane, span.name, max(span.start_us - begin, 0.0), min(span.end_us - begin, length_us))
            for span in found if span.start_us < begin + length_us and span.end_us > begin]


def typical(found: Sequence[Span], length_us: float) -> list[Span]:
    """The window of `length_us` whose number of spans is the median of all such windows of the step."""
    whole = max(span.end_us for span in found) - min(span.start_us for span in found)
    windows = [window(found, length_us, place * length_us) for place in range(max(1, int(whole / length_us)))]
    return sorted(windows, key=len)[len(windows) // 2]


def merged(found: Iterable[Span]) -> list[tuple[float, float]]:
    """The times in which at least one of the spans ran, as (start, end) in us, in order and apart from each other."""
    return [(start / 1e3, end / 1e3) for start, end in times(found).tolist()]


def times(found: Iterable[Span]) -> intervals.Set:
    """The same as a set of measure.intervals, in nanoseconds."""
    edges = np.array([(span.start_us, span.end_us) for span in found], dtype=np.float64).reshape(-1, 2)
    starts, ends = np.rint(edges * 1e3).astype(np.int64).T
    return intervals.union(starts, ends)


def recorded(where: str | None = None) -> Timeline | None:
    """The timeline on record of the machine named `where` (measure.record.machine); None where there is none.

    Raises LfError where the file is not what `lfhelpers bench timeline` writes.
    """
    path = record.reference_path("step", where).with_name("step_timeline.json")
    if not path.exists():
        return None
    try:
        content = orjson.loads(path.read_bytes())
        length = content["window_us"]
        windows = {label: window([Span(*row) for row in rows], length)
                   for label, rows in content["windows"].items()}
        return Timeline(windows, length, {key: content[key] for key in ("case", "hardware", "versions", "time")})
    except (ValueError, TypeError, KeyError) as error:
        raise LfError(f"{path} holds no timeline ({error!r}); record it anew: lfhelpers bench timeline.") from error


def _is_operator(event: Any) -> bool:
    return event.name.startswith("aten::")
