"""Tables that a screen reader can walk: a caption, a header cell for each column and one for each row.

The plain text form is aligned, so that the same table reads well in a terminal, a log and a saved notebook.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lfhelpers.notebook import output

CELL = "padding:2px 12px 2px 0;text-align:{side};border-bottom:1px solid rgba(128,128,128,.35)"

CAPTION = "text-align:left;padding:4px 0;font-weight:600;white-space:nowrap"


@dataclass(frozen=True)
class Table:
    """A caption, column names, and rows of one value a column; the first column names its row."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
        """From mappings; the columns are all their keys in order of appearance, and a missing value stays empty."""
        columns = tuple(dict.fromkeys(key for row in rows for key in row))
        return cls(caption, columns, tuple(tuple(row.get(key) for key in columns) for row in rows))

    def html(self) -> str:
        """The table as HTML with <caption> and scoped headers; colours are the page's own."""
        numeric = [self._numeric(index) for index in range(len(self.columns))]
        head = "".join(_cell("th", name, side, 'scope="col"')
                       for name, side in zip(self.columns, numeric, strict=True))
        body = "".join(f"<tr>{self._row(row, numeric)}</tr>" for row in self.rows)
        return (f'<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">'
                f'<caption style="{CAPTION}">{escape(self.caption)}</caption>'
                f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def text(self) -> str:
        """The table as aligned lines under its caption."""
        lines = [self.columns, *(tuple(number(value) for value in row) for row in self.rows)]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        numeric = [self._numeric(index) for index in range(len(self.columns))]
        padded = ["  ".join(cell.rjust(width) if right else cell.ljust(width)
                            for cell, width, right in zip(line, widths, numeric, strict=True)).rstrip()
                  for line in lines]
        return "\n".join([self.caption, *padded])

    def show(self) -> None:
        """Put the table into the cell's output."""
        output.put(self.html(), self.text())

    def _numeric(self, index: int) -> bool:
        values = [row[index] for row in self.rows if row[index] is not None]
        return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)

    def _row(self, row: tuple[Any, ...], numeric: list[bool]) -> str:
        first = _cell("th", row[0], numeric[0], 'scope="row"')
        return first + "".join(_cell("td", value, side) for value, side in zip(row[1:], numeric[1:], strict=True))


def number(value: Any) -> str:
    """A value as a reader wants it: three significant digits, thousands separated, nothing for None.

    >>> number(1234.5), number(0.98765), number(41), number(None)
    ('1,234', '0.988', '41', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if abs(value) >= 999.5:  # .3g would turn 1000 into 1e+03
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.2e}"


def _cell(tag: str, value: Any, right: bool, scope: str = "") -> str:
    style = CELL.format(side="right" if right else "left")
    return f'<{tag}{" " if scope else ""}{scope} style="{style}">{escape(number(value))}</{tag}>'
