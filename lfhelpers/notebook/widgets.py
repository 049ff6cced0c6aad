"""Controls over pure functions: the result for the first values always stands in the cell, the controls are a skin.

`explore(draw, share=(0, 95, 5))` shows `draw()` as a normal output, which every saved copy, page and terminal has. In
JupyterLab it adds a control for each name, and shows the result for other values below them, so that the first one
stays in sight to compare with. Played headless, or without ipywidgets, nothing is added and nothing is drawn twice.

JupyterLab answers controls in a thread of their own (a subshell), also while a cell runs. So a draw function must be
pure: it returns what it shows and prints nothing. What it returns reaches the browser as a value of one widget and
never through an Output widget, which would catch what the running cell prints.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from lfhelpers.errors import LfError
from lfhelpers.notebook import figures, output, results
from lfhelpers.notebook.charts import Chart
from lfhelpers.notebook.tables import Table

Shown = Chart | Table | str | Sequence["Shown"]
"""What a draw function returns: a chart, a table, a sentence, or several of them one below the other."""
Range = tuple[float, float, float] | Sequence[Any]
"""(lowest, highest, step) for a slider; a list of choices for a menu."""
WIDE = "460px"
BELOW = "Change a value: its result appears here, below the first one."
STYLE = ("<style>.lf-shown{line-height:1.5;overflow-x:auto}.lf-shown p{margin:.5em 0}"
         ".lf-skin :focus-visible{outline:2px solid var(--jp-brand-color1,#1976d2);outline-offset:2px}"
         ".lf-skin .widget-readout{min-width:5em;width:auto}</style>")
"""Widgets set lines at the height of their controls, which is too wide for tables; and focus must be seen."""


def interactive() -> bool:
    """Whether someone may be at the controls: a kernel that the runner doesn't play, with ipywidgets installed."""
    ipython = sys.modules.get("IPython")
    in_kernel = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    return in_kernel and not results.headless() and importlib.util.find_spec("ipywidgets") is not None


def explore(draw: Callable[..., Shown], /, labels: Mapping[str, str] | None = None, **ranges: Range) -> None:
    """Show `draw()`, and where someone may use them a control for each name in `ranges`.

    Controls begin at the defaults of `draw`, which must have one for each name; `labels` names those whose own names
    don't say enough, with the unit.
    """
    output.put(*rendered(draw()))
    if interactive():
        from IPython.display import display

        display(Explorer(draw, ranges, labels or {}).view)


class Explorer:
    """The controls of a draw function and the result for their values; `view` is the widget that holds both."""

    def __init__(self, draw: Callable[..., Shown], ranges: Mapping[str, Range], labels: Mapping[str, str]) -> None:
        import ipywidgets

        self._draw, self._drawing = draw, threading.Lock()
        defaults = {name: parameter.default for name, parameter in inspect.signature(draw).parameters.items()}
        self.controls = {name: _control(labels.get(name, name.replace("_", " ")), span, defaults[name])
                         for name, span in ranges.items()}
        self.result = ipywidgets.HTML(f"<em>{BELOW}</em>")
        for control in self.controls.values():
            control.observe(self._changed, "value")
        self.view = ipywidgets.VBox([ipywidgets.HTML(STYLE), *self.controls.values(), self.result])
        self.view.add_class("lf-skin")

    def _changed(self, _: Any) -> None:
        """Draw for the values of now: of two changes at once, the second one to come draws both."""
        with self._drawing:
            values = {name: control.value for name, control in self.controls.items()}
            try:
                shown = rendered(self._draw(**values))[0]
            except Exception as error:  # no cell is running that could show it
                shown = complaint(error)
            self.result.value = f'<div class="lf-shown">{shown}</div>'


def rendered(shown: Shown) -> tuple[str, str]:
    """(HTML, text) of what a draw function returned."""
    if isinstance(shown, Chart):
        return figures.html(*shown), f"{shown.alt}\n{shown.table.text()}"
    if isinstance(shown, Table):
        return shown.html(), shown.text()
    if isinstance(shown, str):
        return f"<p>{escape(shown)}</p>", shown
    parts = [rendered(part) for part in shown]
    return "".join(part for part, _ in parts), "\n".join(text for _, text in parts)


def complaint(error: Exception) -> str:
    """An error as a sentence: ours say what to do, others also what kind they are."""
    words = str(error) if isinstance(error, LfError) else f"{type(error).__name__}: {error}"
    return f'<p role="alert"><strong>Not possible:</strong> {escape(words)}</p>'


def _control(label: str, span: Range, value: Any) -> Any:
    """A slider that reports when it is let go, or by the arrow keys; a menu for a list of choices."""
    import ipywidgets

    look = {"description": label, "layout": {"width": WIDE}, "style": {"description_width": "45%"}}
    if isinstance(span, list):
        return ipywidgets.Dropdown(options=span, value=value, **look)
    low, high, step = span
    whole = all(isinstance(each, int) for each in (*span, value))
    kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
    more = {} if whole else {"readout_format": ".2f" if high < 10 else ".1f" if high < 1000 else ",.0f"}
    return kind(value=value, min=low, max=high, step=step, continuous_update=False, **look, **more)
