"""One line that says how a run goes, from its folder alone, so that any cell, shell or later session can show it.

steps.jsonl is read from where the last look ended, and at first only its end: a look costs the same at step ten and at
step ten million. In a notebook the line is one display that is updated in place (2,000 updates are saved as one output
of 1 KB, where 20,000 prints are 2.3 MB); in a terminal it is rewritten; in a file it is a line every TICK seconds.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from lfhelpers import runs
from lfhelpers.runs import Run

EVERY = 0.5  # seconds between looks
TICK = 10.0  # seconds between lines where a line cannot be rewritten
WINDOW = 20  # steps over which rates are taken
_END = 65536  # bytes of steps.jsonl that hold WINDOW steps with room to spare

Show = Callable[[str, bool], None]
"""Shows a line; the second argument says that it is the last one."""


class Tail:
    """The last WINDOW rows of a steps.jsonl that grows, and may be cut back by a resumed run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: deque[dict[str, Any]] = deque(maxlen=WINDOW)
        self._file: tuple[int, int] | None = None  # device and inode: a cut file is a new file of the same name
        self._read = 0

    def update(self) -> None:
        """Take in the whole lines that were added since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            self._begin_if_new(file.fileno())
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        lines = whole.split(b"\n") if whole else []
        self._read += len(whole) + 1 if whole else 0
        self.rows.extend(orjson.loads(line) for line in lines)

    def _begin_if_new(self, descriptor: int) -> None:
        stat = os.fstat(descriptor)
        if self._file == (stat.st_dev, stat.st_ino) and stat.st_size >= self._read:
            return
        self._file, self._read = (stat.st_dev, stat.st_ino), 0
        self.rows.clear()
        if stat.st_size > _END:  # start behind the first line break in the file's end
            self._read = stat.st_size - _END
            self._read += os.pread(descriptor, _END, self._read).index(b"\n") + 1


class Progress:
    """A run's line, kept up to date."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.total = run.recipe.steps
        self._tail = Tail(run.path / "steps.jsonl")
        self._began = time.monotonic()

    def line(self) -> str:
        """The line now: where it is and how fast, or how it ended."""
        self._tail.update()
        rows, status = list(self._tail.rows), self.run.status
        step = rows[-1]["step"] if rows else 0
        if status["state"] == "running":
            waited = int(time.monotonic() - self._began)
            return self._running(rows) if rows else f"starting, {waited} s"
        if status["state"] == "done":
            loss = f", loss {rows[-1]['loss']:.4f}" if rows else ""
            return f"done: {step}/{self.total} steps{loss}"
        return f"{status['state']} at step {step}/{self.total}: {status['reason']}"

    def _running(self, rows: list[dict[str, Any]]) -> str:
        last = rows[-1]
        timed = [row for row in rows if not row["probe"]] or rows
        ms = sum(row["step_ms"] for row in timed) or 1e-9
        wait = sum(row["ms"]["data_wait"] for row in timed)
        left = datetime.timedelta(seconds=round((self.total - last["step"]) * ms / len(timed) / 1000))
        rate = sum(row["samples"] for row in timed) / ms * 1000
        exposed = last.get("exposed_ms")  # the newest that DDP has timed; none with one rank or a replayed graph
        share = "" if exposed is None else f"exposed exchange {100 * exposed * len(timed) / ms:.0f} %  "
        return (f"step {last['step']}/{self.total}  loss {last['loss']:.4f}  {rate:.1f} samples/s  "
                f"data wait {100 * wait / ms:.0f} %  {share}ETA {left}")


def status_line(run: str | Run) -> str:
    """One line on a run: step, loss, samples/s, data wait and ETA while it runs, how it ended afterwards."""
    return Progress(runs.load(run)).line()


def last_step(run: Run) -> int:
    """The last step that the run has written; 0 before the first."""
    tail = Tail(run.path / "steps.jsonl")
    tail.update()
    return tail.rows[-1]["step"] if tail.rows else 0


def watch(run: str | Run, every: float = EVERY) -> Run:
    """Show the line of a run, also of one that another process launched, until it has ended."""
    run = runs.load(run)
    follow(run, lambda: run.status["state"] != "running", screen(), every)
    return run


def follow(run: Run, ended: Callable[[], bool], show: Show, every: float = EVERY) -> None:
    """Show the run's line until `ended` says so; an interrupt leaves the line as it was last."""
    progress = Progress(run)
    try:
        while not ended():
            show(progress.line(), False)
            time.sleep(every)
    finally:
        show(progress.line(), True)


def silent(line: str, last: bool) -> None:
    """The way to show a line to nobody."""


def screen() -> Show:
    """The way to show a line here: a notebook's display, a terminal's current line, or lines of a file."""
    if _in_kernel():
        return _display()
    return _rewritten if sys.stdout.isatty() else _printed()


def _in_kernel() -> bool:
    """Whether this is a Jupyter kernel; nothing is imported to find out."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


def _display() -> Show:
    from IPython.display import display

    handle = display({"text/plain": "starting"}, raw=True, display_id=True)
    shown = ""

    def show(line: str, last: bool) -> None:
        nonlocal shown
        if line != shown:
            handle.update({"text/plain": line}, raw=True)
            shown = line

    return show


def _rewritten(line: str, last: bool) -> None:
    print(f"\r{line}\x1b[K", end="\n" if last else "", flush=True)


def _printed() -> Show:
    due = time.monotonic()

    def show(line: str, last: bool) -> None:
        nonlocal due
        if last or time.monotonic() >= due:
            print(line, flush=True)
            due = time.monotonic() + TICK

    return show
