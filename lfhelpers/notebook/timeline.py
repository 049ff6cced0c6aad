"""The picture of a few milliseconds of a step: what the host launched, what ran, and the gaps between."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lfhelpers.measure.timeline import HOST, Span, merged
from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, INK, blank
from lfhelpers.notebook.tables import Table

LEAST_SHARE = 0.0004
"""Of the window: what is narrower is drawn that wide, or it would not be seen."""
THICK = 22
"""Points that a lane is high."""


def timeline(windows: Mapping[str, Sequence[Span]], length_us: float) -> Chart:
    """One row a lane of each window, {label: spans that begin at 0}; a box is an operator, a launch or a kernel.

    A window in which the host did nothing keeps its empty lane: that is the finding. Lanes other than the host's are
    the device's streams.
    """
    lanes = [(label, lane, [span for span in found if span.lane == lane])
             for label, found in windows.items() for lane in _lanes(found)]
    figure, axes = blank(height=0.9 + 0.5 * len(lanes))
    for place, (_, lane, found) in enumerate(lanes):
        # Thick strokes in one line with gaps: a rectangle each would make the file three times as large.
        times = [time / 1e3 for start, end in merged(found)
                 for time in (start, max(end, start + LEAST_SHARE * length_us), math.nan)]
        axes.plot(times, [place] * len(times), color=COLOURS[0 if lane == HOST else 5], linewidth=THICK,
                  solid_capstyle="butt")
    axes.set_yticks(range(len(lanes)), [f"{label}: {lane}" for label, lane, _ in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, length_us / 1e3)
    axes.set_xlabel("time [ms]", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    rows = [_row(label, lane, found, length_us) for label, lane, found in lanes]
    return Chart(figure, _finding(rows, length_us), Table.of(f"The {length_us / 1e3:.3g} ms of the picture", rows))


def _lanes(found: Sequence[Span]) -> list[str]:
    """The host first, whether or not it did anything, then the streams in the order of their first work."""
    return list(dict.fromkeys([HOST, *(span.lane for span in found)]))


def _row(label: str, lane: str, found: Sequence[Span], length_us: float) -> dict[str, Any]:
    runs = merged(found)
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(runs)]
    return {"trace": label, "lane": lane, "pieces": len(found),
            "busy [%]": 100 * sum(end - start for start, end in runs) / length_us,
            "median piece [us]": statistics.median(span.end_us - span.start_us for span in found) if found else None,
            "median gap [us]": statistics.median(gaps) if gaps else None}


def _finding(rows: Sequence[Mapping[str, Any]], length_us: float) -> str:
    """'In 4 ms: as found, host: 412 pieces, 61 % busy; ...' as one sentence."""
    found = [f"{row['trace']}, {row['lane']}: {row['pieces']} pieces, {row['busy [%]']:.0f} % busy" for row in rows]
    return f"In {length_us / 1e3:.3g} ms: {'; '.join(found)}."
