"""The ladder as a table: a rung a line, with what it reached, against which rungs, and whether its gate was passed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from lfhelpers.bench.ladder_record import BEFORE
from lfhelpers.measure.record import Record

UNITS = {"samples/s": "samples/s", "ms": "ms", BEFORE: "x before", "x as found": "x as found",
         "x competent": "x competent", "% MFU": "MFU %", "% waiting for data": "data wait %",
         "% exposed communication": "exposed %",
         "% of the time with a kernel on the GPU": "GPU %", "GiB at the peak": "peak GiB", "J a sample": "J/sample"}
"""Columns, by the unit of their rows; one that no rung has is left out."""


TEXT = ("rung", "gate", "predicted", "next bottleneck", "why not")


def lines(record: Record) -> list[dict[str, Any]]:
    """A dictionary a rung: `rung`, the figures by UNITS' heads, `low` and `high` of x as found, `gate`, `why not`.

    `predicted` is what the trace of the rung before had promised of `x before`, as "1.10 to 1.30".
    """
    found = {(row.name, row.unit): row for row in record.rows}
    heads = {unit: head for unit, head in UNITS.items() if any(each == unit for _, each in found)}
    gates, failed = record.settings["gates"], record.settings["failed"]
    promised, after = record.settings.get("predictions", {}), record.settings.get("next_bottleneck", {})
    names = list(dict.fromkeys([row.name for row in record.rows] + list(failed)))
    table = []
    for name in names:
        line: dict[str, Any] = {"rung": name}
        line |= {head: found[name, unit].value if (name, unit) in found else None for unit, head in heads.items()}
        ratio = found.get((name, "x as found"))
        line |= {"low": ratio.low if ratio else None, "high": ratio.high if ratio else None}
        verdict = gates.get(name.removeprefix("+ ")) if name.startswith("+") else None
        line["gate"] = f"{verdict['gate']}: {'passed' if verdict['passed'] else 'not passed'}" if verdict else ""
        line |= {"predicted": _range(promised.get(name)), "next bottleneck": after.get(name, "")}
        table.append(line | {"why not": failed.get(name, "")})
    return table


def table(record: Record) -> Table:
    """For a terminal; the interval of `x as found` stands behind it."""
    rows = lines(record)
    checks = ", ".join(f"{name} {value:.3g}" for name, value in record.checks.items())
    drawn = Table(title=f"ladder: {record.settings['size']}, {record.settings['micro']} samples a step and rank, "
                        f"{record.settings['nproc']} rank(s)",
                  caption=f"{checks}. {_scatter(record.aa_spread)}",
                  caption_justify="left")
    heads = [head for head in rows[0] if head not in ("low", "high")]
    for head in heads:
        drawn.add_column(head, justify="left" if head in TEXT else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(_cell(head, row) for head in heads))
    return drawn


def _scatter(spread: float) -> str:
    return ("No recipe was run twice, so ratios have no interval." if math.isnan(spread) else
            f"A recipe differs from itself by up to {spread:.1%}.")


def _range(score: Mapping[str, Any] | None) -> str:
    return "" if score is None else f"{score['low']:.2f} to {score['high']:.2f}"


def _cell(head: str, row: dict[str, Any]) -> str:
    value = row[head]
    if not isinstance(value, float):
        return value or ""
    known = head == "x as found" and not math.isnan(row["low"])
    interval = f" ({row['low']:.2f}-{row['high']:.2f})" if known else ""
    return f"{value:.2f}{interval}" if head.startswith("x ") else f"{value:,.1f}"
