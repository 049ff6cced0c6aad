"""Charts of what was learnt: figures of quality over samples or time, seeds as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import COLOURS, DASHES, INK, MARKERS, blank
from lfhelpers.notebook.tables import Table, number

NAMES = {"success": "success", "action_mse": "action MSE", "question_accuracy": "questions answered rightly",
         "bleu4": "caption BLEU-4", "cider": "caption CIDEr"}
AXES = {"samples": "samples trained on", "seconds": "seconds of training"}


def learning_curves(curves: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], figure: str,
                    over: str = "samples") -> Chart:
    """One figure over "samples" or "seconds": {label: a curve a seed}; the line is the seeds' median, the band their
    range. Points without the figure are left out; so are labels without any."""
    drawing, axes = blank()
    rows: list[dict[str, Any]] = []
    findings = []
    for index, (label, seeds) in enumerate(curves.items()):
        points = _points(seeds, figure, over)
        if not points:
            continue
        x, low, middle, high = (np.array(column) for column in zip(*points, strict=True))
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(x, middle, label=label, color=colour, linestyle=DASHES[index % len(DASHES)],
                  marker=MARKERS[index % len(MARKERS)], markersize=4, linewidth=1.4)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        rows += [{"run": label, over: round(float(a)), "lowest": float(b), "median": float(c), "highest": float(d)}
                 for a, b, c, d in points]
        findings.append(f"{label} from {number(middle[0])} to {number(middle[-1])}")
    axes.set_xlabel(AXES[over], color=INK, fontsize=9)
    axes.set_ylabel(NAMES[figure], color=INK, fontsize=9)
    if len(findings) > 1:
        axes.legend(frameon=False, fontsize=8.5)
    return Chart(drawing, f"{NAMES[figure].capitalize()} over {AXES[over]}: {'; '.join(findings)}.",
                 Table.of(f"{NAMES[figure].capitalize()} over {AXES[over]}, over seeds", rows))


def _points(seeds: Sequence[Sequence[Mapping[str, Any]]], figure: str, over: str
            ) -> list[tuple[float, float, float, float]]:
    """(place, lowest, median, highest) of the measurements that all seeds have, by their order."""
    kept = [[(point[over], point[figure]) for point in curve if figure in point] for curve in seeds]
    found = []
    for at in range(min(map(len, kept), default=0)):
        places, values = zip(*(curve[at] for curve in kept), strict=True)
        found.append((float(np.median(places)), min(values), float(np.median(values)), max(values)))
    return found
