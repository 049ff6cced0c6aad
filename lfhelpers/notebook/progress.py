"""Progress of a headless notebook as plain lines: which cell runs, for how long, and about how long to go.

Plain lines, not a bar, because the reader is as often a log file as a terminal.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any


class Progress:
    """Prints a line every `every` seconds while a notebook plays; use as a context manager.

    `before` is how long the notebook took last time [s], the better estimate; without it, cells are taken as equal.
    """

    def __init__(self, name: str, cells: int, before: float | None = None, every: float = 10.0) -> None:
        self.name, self.cells, self.before, self.every = name, cells, before, every
        self.done, self.source = 0, ""
        self.started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def cell(self, cell: Any, cell_index: int) -> None:
        """Note that a code cell begins; nbclient calls this."""
        self.done += 1
        self.source = cell.source.strip().splitlines()[0]

    def line(self, elapsed: float) -> str:
        """The line to print after `elapsed` seconds."""
        left = self._left(elapsed)
        estimate = f", about {left:.0f} s left" if left is not None else ""
        return f"{self.name}  cell {self.done} of {self.cells}, {elapsed:.0f} s{estimate}: {self.source}"

    def _left(self, elapsed: float) -> float | None:
        if self.before is not None and elapsed < self.before:
            return self.before - elapsed
        finished = self.done - 1
        return elapsed / finished * (self.cells - finished) if finished > 0 else None

    def _tick(self) -> None:
        while not self._ended.wait(self.every):
            print(self.line(time.monotonic() - self.started), flush=True)
