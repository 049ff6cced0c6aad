"""Figures that everyone can read and git can diff: SVG with real text, a finding as alt text, a table beside.

matplotlib's Figure is drawn by its SVG backend alone. pyplot is left out: it keeps global state, picks a backend by the
environment, and keeps every figure alive. The picture goes out as <img> with a data URI, because that is the route on
which the alt text survives the notebook's HTML export.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from lfhelpers.notebook import output
from lfhelpers.notebook.tables import Table

# Okabe and Ito's palette, told apart by colour-blind eyes; yellow is left out, as it vanishes on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
HATCHES = ("", "//", "||", "xx", "\\\\", "++", "--", "|//")  # no dots or rings: as SVG they weigh 70 KB
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
POINTS = 500
"""Most points that a line is drawn with: more can't be seen, and make a file of megabytes."""
INK = "#1f2328"
SVG: dict[Any, Any] = {"svg.hashsalt": "lfhelpers", "svg.fonttype": "none", "font.family": "sans-serif",
                      "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"]}
_WRITING = threading.Lock()
"""matplotlib's settings are the process's, and a slider draws in another thread than the cell that runs."""


def blank(width: float = 7.2, height: float = 3.0) -> tuple[Figure, Axes]:
    """An empty white figure of width x height inches, with one plot in it and no frame on its top and right."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def svg(figure: Figure, title: str) -> str:
    """The figure as SVG text: the same bytes for the same drawing, with text kept as text."""
    buffer = io.StringIO()
    with _WRITING, matplotlib.rc_context(SVG):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    return buffer.getvalue()


def show(figure: Figure, alt: str, table: Table | None = None, caption: str = "") -> None:
    """Show a figure with its finding as alt text and caption, and its numbers as a table.

    `alt` is a sentence that states what the figure shows, not what it is; a terminal gets that sentence and the table.
    """
    text = alt if table is None else f"{alt}\n{table.text()}"
    output.put(html(figure, alt, table, caption), text)


def html(figure: Figure, alt: str, table: Table | None = None, caption: str = "") -> str:
    """A <figure> with the picture inside, so that it needs no file and no network, and the table under it."""
    data = base64.b64encode(svg(figure, alt).encode()).decode()
    picture = (f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}" '
               'style="max-width:100%;height:auto;background:#fff">')
    below = table.html() if table else ""
    return (f'<figure style="margin:0">{picture}<figcaption>{escape(caption or alt)}</figcaption></figure>{below}')


def show_pictures(pictures: Mapping[str, bytes], caption: str, width: int = 320) -> None:
    """Show JPEG or PNG files side by side, unchanged, at `width` pixels each: {alt text: bytes}.

    The alt text, a sentence on what is to be seen, stands under its picture too; a terminal gets the sentences alone.
    """
    boxes = "".join(
        f'<div style="width:{width}px"><img alt="{escape(alt)}" src="data:image/{_kind(data)};base64,'
        f'{base64.b64encode(data).decode()}" style="width:100%"><div style="font-size:90%">{escape(alt)}</div></div>'
        for alt, data in pictures.items())
    output.put(f'<figure style="margin:0"><div style="display:flex;flex-wrap:wrap;gap:12px">{boxes}</div>'
               f"<figcaption>{escape(caption)}</figcaption></figure>", "\n".join([caption, *pictures]))


def png(pixels: NDArray[Any]) -> bytes:
    """An image, [H, W, 3] or [H, W] of levels 0..255, as a PNG file for `show_pictures`."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _kind(data: bytes) -> str:
    return "png" if data.startswith(b"\x89PNG") else "jpeg"


def thin(values: Sequence[Any], most: int = POINTS) -> list[Any]:
    """At most `most` of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(index * step)] for index in range(most)]
