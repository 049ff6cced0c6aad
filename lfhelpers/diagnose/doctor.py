"""What this machine has, what doesn't fit together, and the fix: one line a topic.

Only what would stop a job or make its figures wrong is marked as a fault; a machine without a GPU is none. Every check
stands alone, so a missing or broken part costs its own line and no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lfhelpers import runs
from lfhelpers.diagnose import doctor_host, doctor_software
from lfhelpers.diagnose.doctor_software import Answer
from lfhelpers.errors import LfError


@dataclass(frozen=True)
class Line:
    """One topic: what was found, whether it fits (None: it doesn't matter here), and what to do where it doesn't."""

    topic: str
    value: str
    ok: bool | None
    fix: str = ""


def examine(data_folder: str | os.PathLike[str] | None = None, quick: bool = False) -> list[Line]:
    """Examine this machine; `quick` leaves out the disk, read in `data_folder` (none: where the runs lie) for 3 s."""
    checks = doctor_software.CHECKS | doctor_host.CHECKS
    if not quick:
        folder = Path(data_folder) if data_folder is not None else _existing(runs.root())
        checks["disk"] = lambda: doctor_host.read_disk(folder)
    return [_line(topic, check) for topic, check in checks.items()]


def render(lines: list[Line], console: Console | None = None) -> int:
    """Print the lines as a table and return the exit code: 1 if anything needs fixing, else 0."""
    console = console or Console()
    table = Table("", "topic", "found", "what to do", title="lfhelpers doctor", title_justify="left")
    for line in lines:
        mark = {True: "[green]ok[/]", False: "[red]FIX[/]", None: "-"}[line.ok]
        table.add_row(mark, line.topic, escape(line.value), escape(line.fix))
    faults = sum(line.ok is False for line in lines)
    console.print(table)
    console.print(f"{faults} to fix." if faults else "Everything fits together.")
    return int(faults > 0)


def _line(topic: str, check: Callable[[], Answer]) -> Line:
    try:
        return Line(topic, *check())
    except LfError as error:
        return Line(topic, "could not be measured", False, str(error))
    except Exception as error:  # whatever is broken on a stranger's machine must not hide the other lines
        return Line(topic, f"could not be read: {type(error).__name__}: {error}", False, "see the message")


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())
