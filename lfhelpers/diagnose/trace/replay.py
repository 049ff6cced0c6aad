"""A trace's steps run again, with less of one thing: what the step would take, and not what a share of it suggests.

The host launches, the GPU's streams work, and each waits for the other. Of every piece of work it is known what it
waited for: its launch, the piece before it on its stream, or work on another stream. These edges stay; lengths shrink;
then all times follow by taking the latest of what each piece waits for (max-plus). So a step never gets longer when
something in it gets shorter, and what hid behind the removed part comes to light, which no product of speed-ups shows.

One step's work is laid end to end many times, until the host's lead has settled. The edges are observed, not known: an
event wait that cost nothing in the trace leaves none. `error` says how well the unchanged replay meets the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lfhelpers.diagnose.trace.partition import Partition
from lfhelpers.diagnose.trace.pieces import CAUSES, FAR, columns, first_at, launch_of

MOST = 150_000
"""Pieces of work in the steps that are laid end to end; above, nothing is simulated."""
SIMULATED = 60_000
LEAST_TILES, MOST_TILES = 4, 12


@dataclass(frozen=True)
class Replay:
    """Steps that can be run again; `pieces` are columns of all work in the order of launching."""

    pieces: Mapping[str, Any]
    tile: tuple[int, int]
    windows: int
    observed_ms: float
    observer: float = 0.0
    """ns that the profiler cost each operator of the host: they are left out of every run."""

    @classmethod
    def of(cls, found: Partition, observer_us: float = 0.0) -> Replay | None:
        """The replay of a partition; None where it holds too little or too much, or launches aren't known."""
        known = found.launched.known
        if found.windows < 1 or known.mean() < 0.5:
            return None
        order = np.lexsort((found.trace.start[found.rows], launch_of(found)))
        bounds = [first_at(found, order, int(bound)) for bound in (found.steps.bounds[0], found.steps.bounds[-1])]
        if bounds[1] <= bounds[0] or bounds[1] - bounds[0] > MOST:
            return None
        return cls(columns(found, order) | {"length_ns": found.length}, (bounds[0], bounds[1]), found.windows,
                   found.length / found.windows / 1e6, 1e3 * observer_us)

    @property
    def base_ms(self) -> float:
        """The mean step as it was, without what the profiler cost it."""
        return self._unchanged if self.observer else self.observed_ms

    @property
    def causes(self) -> tuple[str, ...]:
        """What may be shrunk."""
        return CAUSES

    @property
    def realistic(self) -> Mapping[str, float]:
        """A trace alone knows no floor."""
        return {}

    @property
    def error(self) -> float:
        """By what share the unchanged replay's step differs from the trace's."""
        whole = replace(self, observer=0.0) if self.observer else self
        return whole._unchanged / self.observed_ms - 1

    def ms(self, keep: Mapping[str, float]) -> float:
        """The step when of each cause this share (0..1) is left: {"data": 0.0} for a loader never waited for."""
        return self.base_ms * min(1.0, self._run(keep) / self._unchanged)

    @cached_property
    def _unchanged(self) -> float:
        return self._run({})

    def _run(self, keep: Mapping[str, float]) -> float:
        """Milliseconds of a settled step."""
        first, last = self.tile
        size = last - first
        tiles = int(np.clip(SIMULATED // size, LEAST_TILES, MOST_TILES))
        pieces = list(zip(*(column.tolist() for column in _shrunk(self, keep)), strict=True))
        starts = _begun(pieces, tiles, keep.get("synchronisation", 1.0), len(np.unique(self.pieces["stream"])))
        half = tiles // 2
        return (starts[-1] - starts[half - 1]) / (tiles - half) / self.windows / 1e6


def _begun(pieces: Sequence[tuple[Any, ...]], tiles: int, keep_sync: float, streams: int) -> list[float]:
    """When each tile's first piece begins, ns. Comparisons in place of max(): it runs a million times for a report."""
    ready = [0.0] * (len(pieces) * tiles)
    free, starts = [0.0] * streams, []
    now = release = 0.0
    for tile in range(tiles):
        for place, (before, data, period, target, beside, rest, after, launch_gap, stream, stream_gap, other, other_gap,
                    length) in enumerate(pieces, tile * len(pieces)):
            now += before
            if period:  # of a loader that is never full: its next batch comes a period after the one before
                release += period
                now = max(now, release)
            now += data
            if target != FAR and keep_sync:
                for index in (place + target, place + beside):
                    now = max(now, ready[index] if index >= 0 else 0.0)
                now += keep_sync * rest
            now += after
            start, queued = now + launch_gap, free[stream] + stream_gap
            if queued > start:
                start = queued
            if other != FAR and place + other >= 0:
                start = max(start, ready[place + other] + other_gap)
            ready[place] = free[stream] = start + length
        starts.append(ready[tile * len(pieces)] - pieces[0][-1])
    return starts


def _whole(of: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
    return of("late") + of("loops") + of("reads")


def _periodic(column: NDArray[Any], first: int, last: int) -> NDArray[Any]:
    """A column of the tile; what came before its first piece is what came before the next tile's."""
    part = np.array(column[first:last])
    if last < len(column):
        part[0] = column[last]
    return part


def _periods(pieces: Mapping[str, Any], first: int, last: int) -> NDArray[Any]:
    """ns between each batch's coming and that of the one before, where the loader is waited for; else 0."""
    came = np.asarray(pieces["arrives"][first:last + 1])
    if len(came) > last - first and came[0] == FAR and came[-1] != FAR:
        came = np.r_[came[-1] - pieces["length_ns"], came[1:-1]]
    came = came[:last - first]
    places = np.flatnonzero(came != FAR)
    periods = np.zeros(last - first)
    if len(places):
        periods[places] = np.diff(np.r_[came[places[-1]] - pieces["length_ns"], came[places]]).clip(min=0)
    return periods


def _shrunk(replay: Replay, keep: Mapping[str, float]) -> list[NDArray[Any]]:
    """The columns of one tile that `_run` reads, with lengths as `keep` says."""
    pieces, (first, last) = replay.pieces, replay.tile

    def of(name: str) -> NDArray[Any]:
        return _periodic(pieces[name], first, last)

    host, loops, data = (keep.get(cause, 1.0) for cause in ("host", "loops", "data"))
    reads = keep.get("synchronisation", 1.0)
    scale = np.array([keep.get(cause, 1.0) for cause in CAUSES] + [1.0])[pieces["shrinks"][first:last]]
    late = host * of("late") + loops * of("loops") + reads * of("reads")
    streams = np.unique(pieces["stream"], return_inverse=True)[1]
    late = np.maximum(late - replay.observer * of("events") * late / np.maximum(_whole(of), 1.0), 0.0)
    return [host * of("early"), data * of("data"), data * _periods(pieces, first, last), of("target"), of("beside"),
            of("rest"), late, of("launch_gap"), streams[first:last], of("stream_gap"), of("other"),
            of("other_gap"), scale * pieces["length"][first:last]]
