"""What every chart must be: the same small SVG with real text, however often it is drawn."""

from collections.abc import Callable

from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.figures import svg


def drawn_twice(draw: Callable[[], Chart]) -> None:
    """Draw a chart twice and compare: git can diff it, readers can search it, and a notebook stays small."""
    first, second = (svg(chart.figure, chart.alt) for chart in (draw(), draw()))
    assert first == second and "<text" in first
    assert len(first) < 60_000
