"""Pictures of what each remedy could win: ranges side by side, and predictions beside what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from lfhelpers.diagnose.ceilings import NAMED, Ceilings
from lfhelpers.diagnose.predictions import Score
from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, HATCHES, INK, blank
from lfhelpers.notebook.tables import Table


def ceiling_ranges(found: Ceilings) -> Chart:
    """A bar a remedy from no gain to its realistic speed-up, hatched on to the ideal one; the verdict is the finding.

    Remedies that are not worth a name are left out; if none is, the picture shows the first alone.
    """
    listed = [ceiling for ceiling in found if ceiling.ideal >= NAMED] or list(found)[:1]
    figure, axes = blank(height=1.0 + 0.42 * len(listed))
    for place, ceiling in enumerate(listed):
        axes.barh(place, ceiling.realistic - 1, left=1, height=0.55, color=COLOURS[0], edgecolor="white")
        axes.barh(place, ceiling.ideal - ceiling.realistic, left=ceiling.realistic, height=0.55, color=COLOURS[4],
                  hatch=HATCHES[1], edgecolor="white")
        axes.text(ceiling.ideal, place, f" {ceiling.realistic:.2f}x to {ceiling.ideal:.2f}x", va="center", fontsize=9,
                  color=INK)
    axes.set_yticks(range(len(listed)), [ceiling.remedy for ceiling in listed])
    axes.invert_yaxis()
    highest = max((ceiling.ideal for ceiling in listed), default=1.0)
    axes.set_xlim(1, 1 + 1.35 * max(highest - 1, 0.05))
    axes.set_xlabel("speed-up of the whole step: realistic (full), ideal (hatched)", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    return Chart(figure, found.verdict, Table.of(f"What each remedy could win, by {found.source}", found.rows()))


def promised_and_measured(scores: Sequence[Score]) -> Chart:
    """The promised range of each lever as a bar, and what was measured as a diamond on it."""
    figure, axes = blank(height=1.0 + 0.42 * len(scores))
    for place, score in enumerate(scores):
        axes.plot([score.low, score.high], [place, place], color=COLOURS[4], linewidth=9, solid_capstyle="butt")
        axes.plot(score.expected, place, "|", color=INK, markersize=16, markeredgewidth=2)
        axes.plot(score.measured, place, "D", color=COLOURS[5], markersize=8)
    axes.set_yticks(range(len(scores)), [score.lever for score in scores])
    axes.invert_yaxis()
    axes.set_xlabel("speed-up: promised (bar, expected as a stroke) and measured (diamond)", color=INK, fontsize=9)
    axes.grid(axis="y", visible=False)
    rows = [{"lever": score.lever, "expected": score.expected, "low": score.low, "high": score.high,
             "measured": score.measured, "error [%]": 100 * score.error} for score in scores]
    found = "; ".join(f"{score.lever} {score.expected:.2f}x promised, {score.measured:.2f}x measured"
                      for score in scores)
    return Chart(figure, f"Promised and measured: {found}.", Table.of("Predictions and what came of them", rows))
