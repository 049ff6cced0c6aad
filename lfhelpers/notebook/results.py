"""What a notebook promises and what it finds: named results, kept as JSON, and text whose numbers come from them.

A notebook first says what it will find (`expect`), then records each figure, or skips it with a reason where the
machine can't measure it. The runner believes this file alone: a notebook that stopped early, even politely, lacks what
it promised. Played by the runner, every change is on disk at once, so a killed notebook leaves what it had; in
JupyterLab nothing is written.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.errors import LfError, nearest
from lfhelpers.notebook import output
from lfhelpers.notebook.tables import number

RESULTS_FILE = "LFHELPERS_RESULTS"
"""Environment variable by which the runner tells a notebook where its results go."""
Value = float | int | bool | str


@dataclass(frozen=True)
class Result:
    """One figure with its unit. In text, `{name}` is value and unit, `{name:.2f}` the value alone in that format."""

    name: str
    value: Value
    unit: str = ""
    note: str = ""

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else f"{number(self.value)} {self.unit}".strip()


@dataclass(frozen=True)
class Skipped:
    """A promised figure that this machine can't give; in text it says so, whatever the format."""

    name: str
    reason: str

    def __format__(self, spec: str) -> str:
        return f"(not measured here: {self.reason})"


@dataclass
class Book:
    """The results of one notebook; `path` is the file that mirrors them, or None."""

    path: Path | None = None
    expected: list[str] = field(default_factory=list)
    entries: dict[str, Result | Skipped] = field(default_factory=dict)
    exercises: dict[str, dict[str, bool]] = field(default_factory=dict)

    def put(self, entry: Result | Skipped) -> None:
        """Add or replace an entry."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", entry.name):
            raise LfError(f"result name '{entry.name}' must be small letters, digits and _, so that text can use it.")
        self.entries[entry.name] = entry
        self.save()

    def save(self) -> None:
        """Write the file, whole or not at all."""
        if self.path:
            runs.write_atomic(self.path, orjson.dumps(self.as_dict(), option=orjson.OPT_INDENT_2))

    def as_dict(self) -> dict[str, Any]:
        """expected, results, skipped and exercises, as the results file holds them."""
        kinds: dict[type, list[dict[str, Any]]] = {Result: [], Skipped: []}
        for entry in self.entries.values():
            kinds[type(entry)].append(asdict(entry))
        return {"expected": self.expected, "results": kinds[Result], "skipped": kinds[Skipped],
                "exercises": self.exercises, "python": sys.executable, "time": runs.now()}


def headless() -> bool:
    """Whether the runner plays this notebook: no one is there to move a slider or to answer an exercise."""
    return RESULTS_FILE in os.environ


def _of_this_kernel() -> Book:
    return Book(Path(os.environ[RESULTS_FILE]) if headless() else None)


BOOK = _of_this_kernel()
"""One kernel plays one notebook, so its results live here."""


def expect(*names: str) -> None:
    """Promise results by name, near the notebook's top; the runner fails a notebook that keeps less."""
    BOOK.expected = list(dict.fromkeys([*BOOK.expected, *names]))
    BOOK.save()


def record(name: str, value: Any, unit: str = "", note: str = "") -> Value:
    """Keep a figure, print it, and return it as a plain Python value. Raises LfError for NaN and what is no scalar."""
    result = Result(name, _plain(name, value), unit, note)
    BOOK.put(result)
    print(f"{name}: {result}{f'  ({note})' if note else ''}")
    return result.value


def skip(name: str, reason: str) -> None:
    """Say that a promised figure can't be measured here, and why; not a failure."""
    BOOK.put(Skipped(name, reason))
    print(f"{name}: skipped, {reason}")


def say(template: str, **values: Any) -> None:
    """Show Markdown; `{name}` stands for a recorded result or a value given here. Raises LfError for any other name."""
    output.put_markdown(render(template, {**BOOK.entries, **values}))


def render(template: str, values: Mapping[str, Any]) -> str:
    """The template with its fields filled in; numbers without a format get three significant digits."""
    return _Text(values).format(template)


def missing(results: Mapping[str, Any]) -> list[str]:
    """Promised names of a results file that were neither recorded nor skipped."""
    kept = {entry["name"] for entry in [*results["results"], *results["skipped"]]}
    return [name for name in results["expected"] if name not in kept]


class _Text(string.Formatter):
    """str.format that looks names up in the results and never falls silent about an unknown one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if key not in self.values:
            hint = nearest(str(key), self.values) if self.values else "nothing is recorded yet."
            raise LfError(f"the text uses '{{{key}}}', which is no result; {hint}")
        return self.values[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        return format(value, format_spec) if format_spec or isinstance(value, Result | Skipped) else number(value)


def _plain(name: str, value: Any) -> Value:
    """numpy and torch scalars as Python's own."""
    with contextlib.suppress(AttributeError, ValueError, RuntimeError):  # no scalar of theirs: judged below
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise LfError(f"result '{name}' is {value}: the measurement failed; skip it with a reason instead.")
    if not isinstance(value, float | int | bool | str):
        raise LfError(f"result '{name}' is a {type(value).__name__}; record numbers and strings one by one.")
    return value
