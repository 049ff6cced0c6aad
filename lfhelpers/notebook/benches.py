"""A benchmark inside a lesson: the command of the terminal in a process of its own, and its record in the cell.

A notebook's process has threads, and may have used torch, so it can't fork the measurements itself; and no measurement
should inherit its memory. The command starts clean, and what a lesson shows anyone can repeat without the lesson.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from lfhelpers.errors import LfError
from lfhelpers.measure import record
from lfhelpers.measure.record import Record


def bench(name: str, *options: str, root: Path | None = None) -> Record:
    """The record of `lfhelpers bench NAME OPTIONS`; root: folder for what it leaves, by default that of the runs.

    Raises LfError with the command's last words where it fails. The Stop button ends it, as it ends the cell.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        command = [sys.executable, "-m", "lfhelpers", "bench", name, *options]
        print(f"lfhelpers bench {' '.join([name, *options])}", flush=True)
        done = subprocess.run([*command, f"--out={file}"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=os.environ | ({"LFHELPERS_RUNS": str(root)} if root else {}))
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if re.search(r"\w", line)]
            said = (lines or ["no words"])[-1].strip(" │").removeprefix("lfhelpers: ")
            raise LfError(f"`lfhelpers bench {name}` failed with code {done.returncode}: {said}")
        return record.load(file)
