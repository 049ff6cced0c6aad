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
from typing import Any, NamedTuple

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


class Look(NamedTuple):
    """How a run that has steps goes now, over its last WINDOW steps; `ms` holds the mean of each part of a step.

    exposed_percent: the newest exposed exchange that DDP has timed; None with one rank or a replayed graph.
    """

    step: int
    loss: float
    samples_per_s: float
    ms: dict[str, float]
    wait_percent: float
    exposed_percent: float | None
    left: datetime.timedelta


class Progress:
    """A run's line, kept up to date."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.total = run.recipe.steps
        self._tail = Tail(run.path / "steps.jsonl")
        self._began = time.monotonic()

    def line(self) -> str:
        """The line now: where it is and how fast, or how it ended."""
        look, status = self.look(), self.run.status
        if status["state"] == "running":
            return self._running(look) if look else f"starting, {int(time.monotonic() - self._began)} s"
        if status["state"] == "done":  # what is no training, as an ablation, writes no steps
            return f"done: {look.step}/{self.total} steps, loss {look.loss:.4f}" if look else "done"
        step = look.step if look else 0
        return f"{status['state']} at step {step}/{self.total}: {status['reason']}"

    def look(self) -> Look | None:
        """The figures now; None before the first step."""
        self._tail.update()
        rows = list(self._tail.rows)
        if not rows:
            return None
        last = rows[-1]
        timed = [row for row in rows if not row["probe"]] or rows
        ms = sum(row["step_ms"] for row in timed) or 1e-9
        names = dict.fromkeys(part for row in timed for part in row["ms"])
        parts = {part: sum(row["ms"].get(part, 0.0) for row in timed) for part in names}
        exposed = last.get("exposed_ms")
        return Look(last["step"], last["loss"], sum(row["samples"] for row in timed) / ms * 1000,
                    {part: total / len(timed) for part, total in parts.items()}, 100 * parts["data_wait"] / ms,
                    None if exposed is None else 100 * exposed * len(timed) / ms,
                    datetime.timedelta(seconds=round((self.total - last["step"]) * ms / len(timed) / 1000)))

    def _running(self, look: Look) -> str:
        exposed = look.exposed_percent
        share = "" if exposed is None else f"exposed exchange {exposed:.0f} %  "
        return (f"step {look.step}/{self.total}  loss {look.loss:.4f}  {look.samples_per_s:.1f} samples/s  "
                f"data wait {look.wait_percent:.0f} %  {share}ETA {look.left}")


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
