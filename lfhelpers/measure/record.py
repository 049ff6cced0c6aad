"""A benchmark's record: one JSON file that states what was measured, on what, how often, and how far it scatters.

A record stands alone: hardware, versions, commit and settings travel with the figures, because a figure without them
can't be compared with anything. What failed is kept too, as a row without a value and a sentence under
`settings["failed"]`: a table from which the broken engine is missing looks like one in which it was never tried.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware

KEYS = ("bench", "date", "commit", "hardware", "versions", "settings", "aa_spread", "rows", "checks")
OWN_COMMAND = ("ladder", "base", "study", "pitfalls", "own_workloads")
_SAME = ("cpu", "cores_usable", "gpus")
"""What makes two machines the same one for a benchmark; a driver or a gigabyte of RAM more doesn't."""


@dataclass(frozen=True)
class Row:
    """One figure: the median of `n` measurements with its 95 % interval; NaN and n = 0 for what failed.

    One thing may have several rows of one name, told apart by their unit: images/s, CPU ms/image.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    n: int

    @classmethod
    def of(cls, name: str, values: Sequence[float], unit: str) -> Row:
        """The row of repeated measurements, none for what failed.

        The interval is that of order statistics (binomial, no assumption about the distribution); below six values it
        is the whole range, which covers the median with less than 95 %: 94 % of five, 75 % of three.
        """
        n = len(values)
        if not n:
            return cls(name, math.nan, math.nan, math.nan, unit, 0)
        from scipy import stats  # a second's import, which each rank and kernel that loads this file would pay

        ordered = sorted(map(float, values))
        rank = max(int(stats.binom.ppf(0.025, n, 0.5)), 1)
        return cls(name, float(np.median(ordered)), ordered[rank - 1], ordered[n - rank], unit, n)


@dataclass(frozen=True)
class Record:
    """What one benchmark found. `aa_spread` is the share by which a thing differs from itself (0.02 is 2 %).

    `checks` are the figures that a goal is set for; `settings` what the figures hold for. The rest is filled in.
    """

    bench: str
    settings: dict[str, Any]
    rows: list[Row]
    checks: dict[str, float]
    aa_spread: float
    date: str = field(default_factory=runs.now)
    commit: dict[str, Any] | None = field(default_factory=lambda: hardware.commit(runs.project()))
    hardware: dict[str, Any] = field(default_factory=lambda: hardware.describe()["hardware"])
    versions: dict[str, Any] = field(default_factory=lambda: hardware.versions())

    def row(self, name: str, unit: str | None = None) -> Row:
        """The first row of this name, and of this unit if one is given; LfError where there is none."""
        found = next((row for row in self.rows if row.name == name and unit in (None, row.unit)), None)
        if found is None:
            raise LfError(f"the record of `{self.bench}` has no row '{name}'; it has: "
                          f"{', '.join(row.name for row in self.rows)}.")
        return found

    def as_dict(self) -> dict[str, Any]:
        """The record as it is written, keys in the order of KEYS."""
        content = asdict(self)
        return {key: content[key] for key in KEYS}


def save(record: Record, folder: Path | None = None) -> Path:
    """Write the record as BENCH-DATE-TIME.json into `folder`, by default `bench` beside the runs; returns the path."""
    folder = folder or runs.root() / "bench"
    stem = f"{record.bench}-{re.sub('[^0-9]', '', record.date[:19])}"
    path, again = folder / f"{stem}.json", 1
    while path.exists():
        again += 1
        path = folder / f"{stem}-{again}.json"
    return write(record, path)


def write(record: Record, path: Path) -> Path:
    """Write the record to this file in one step. Raises LfError where it can't be written."""
    content = orjson.dumps(record.as_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        runs.write_atomic(path, content + b"\n")
    except OSError as error:
        raise LfError(f"the record {path} can't be written: {error.strerror}; name another file with --out.") from error
    return path


def load(path: Path) -> Record:
    """A record from its file. Raises LfError where the file is missing or is no record."""
    try:
        content = orjson.loads(Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise LfError(f"{path} can't be read as a benchmark's record: {error}.") from error
    if not isinstance(content, Mapping) or set(content) != set(KEYS):
        raise LfError(f"{path} is no benchmark's record: it must have exactly the keys {', '.join(KEYS)}.")
    rows = [Row(**_numbers(row)) for row in content["rows"]]
    spread = _numbers({"aa_spread": content["aa_spread"]})
    return Record(**(dict(content) | spread | {"rows": rows, "checks": _numbers(content["checks"])}))


def merge(earlier: Record, record: Record) -> Record:
    """`record` with the rows, checks and settings that only the earlier one has: parts of a bench, run one by one.

    Raises LfError unless both are of one bench, one machine and one commit.
    """
    apart = differences(record, earlier)
    if earlier.bench != record.bench or earlier.commit != record.commit:
        apart.append(f"{_origin(record)} here, {_origin(earlier)} there")
    if apart:
        raise LfError(f"the earlier record can't be added to: {'; '.join(apart)}.")
    names = {(row.name, row.unit) for row in record.rows}
    rows = [row for row in earlier.rows if (row.name, row.unit) not in names]
    return replace(record, rows=rows + record.rows, checks=earlier.checks | record.checks,
                   settings=_joined(earlier.settings, record.settings),
                   aa_spread=max(earlier.aa_spread, record.aa_spread))


def _joined(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The later settings, and what only the earlier ones have, at every depth: curves come part by part."""
    both = {name: _joined(value, later[name]) for name, value in earlier.items()
            if isinstance(value, Mapping) and isinstance(later.get(name), Mapping)}
    return dict(earlier) | dict(later) | both


def machine(facts: Mapping[str, Any] | None = None, gpus: int | None = None) -> str:
    """The name under which a machine's records are kept: `h200x1`, `cpu2`; `gpus`: how many of them a bench uses."""
    facts = facts or hardware.describe()["hardware"]
    present = facts["gpus"]
    count = len(present) if gpus is None else min(gpus, len(present))
    if not count:
        return f"cpu{facts['cores_usable']}"
    short = str(present[0]["name"]).removeprefix("NVIDIA ").lower()
    return f"{re.sub('[^a-z0-9]+', '-', short).strip('-')}x{count}"


def reference(bench: str, where: str | None = None) -> Record | None:
    """The committed record of a bench for the machine named `where`, by default this one; None where there is none."""
    path = reference_path(bench, where)
    return load(path) if path.exists() else None


def reference_path(bench: str, where: str | None = None) -> Path:
    """Where the committed record of a bench lies; one that has a command of its own is called like that."""
    name = bench if bench.startswith(OWN_COMMAND) else f"bench_{bench}"
    return runs.project() / "runs" / "reference" / (where or machine()) / f"{name}.json"


@dataclass(frozen=True)
class Compared:
    """One figure beside the recorded one; ratio = value / recorded. Unlike hardware makes the ratio a curiosity."""

    name: str
    unit: str
    value: float
    recorded: float
    ratio: float
    same_hardware: bool


def compare(record: Record, recorded: Record) -> list[Compared]:
    """Rows, then checks (with the unit `check`), that both records have, in the order of the first."""
    same = not differences(record, recorded)
    old = {(row.name, row.unit): row.value for row in recorded.rows}
    pairs = [(row.name, row.unit, row.value, old[row.name, row.unit]) for row in record.rows
             if (row.name, row.unit) in old]
    pairs += [(name, "check", value, recorded.checks[name]) for name, value in record.checks.items()
              if name in recorded.checks]
    return [Compared(name, unit, value, before, value / before if before else math.nan, same)
            for name, unit, value, before in pairs]


def differences(record: Record, recorded: Record) -> list[str]:
    """In what the two machines differ, as `cores_usable: 2 here, 16 there`; empty for the same kind of machine."""
    return [f"{key}: {record.hardware.get(key)} here, {recorded.hardware.get(key)} there" for key in _SAME
            if record.hardware.get(key) != recorded.hardware.get(key)]


def table(record: Record, recorded: Record | None = None) -> Table:
    """Rows and checks, with the recorded figure and its ratio where there is one; failures with their sentence."""
    drawn = Table(title=f"bench {record.bench}", caption=_caption(record, recorded), caption_justify="left")
    for head in ("what", "value", "95 % interval", "unit", "n", "recorded", "ratio"):
        drawn.add_column(head, justify="left" if head in ("what", "unit") else "right", overflow="fold")
    found = {(each.name, each.unit): each for each in compare(record, recorded)} if recorded else {}
    failed = record.settings.get("failed", {})
    for row in record.rows:
        shown = [_figure(row.value), f"{_figure(row.low)} - {_figure(row.high)}", row.unit] if row.n else \
            ["failed", "", failed.get(row.name, row.unit)]
        drawn.add_row(row.name, *shown, str(row.n), *_old(found.get((row.name, row.unit))))
    drawn.add_section()
    for name, value in record.checks.items():
        drawn.add_row(name, _figure(value), "", "", "", *_old(found.get((name, "check"))))
    return drawn


def show(record: Record, recorded: Record | None = None) -> None:
    """Print the table; where the output is no terminal it is as wide as it needs to be."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table(record, recorded))


def _origin(record: Record) -> str:
    return f"{record.bench} at {record.commit['hash'][:10] if record.commit else 'an unknown commit'}"


def _caption(record: Record, recorded: Record | None) -> str:
    gpus = record.hardware["gpus"]
    on = f"{len(gpus)} x {gpus[0]['name']}, " if gpus else ""
    text = (f"{record.date[:16]}, {on}{record.hardware['cpu']}, {record.hardware['cores_usable']} cores, torch "
            f"{record.versions['torch']}; A/A spread {record.aa_spread:.1%}.")
    if recorded is None:
        return f"{text} No record of this machine to compare with."
    unlike = differences(record, recorded)
    return f"{text} Recorded {recorded.date[:10]}" + (f" on other hardware ({'; '.join(unlike)})." if unlike else ".")


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and writes null for it."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def _old(found: Compared | None) -> list[str]:
    return ["", ""] if found is None else [_figure(found.recorded), f"{found.ratio:.2f}"]


def _figure(value: float) -> str:
    """Four significant digits, and no fewer than the whole number."""
    return "-" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
