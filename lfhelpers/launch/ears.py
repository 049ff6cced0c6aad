"""All that may tell a supervisor something, behind one `hear`, so that one select waits for everything."""

from __future__ import annotations

import os
import select
import signal
import tempfile
import uuid
from pathlib import Path


class Ears:
    """All that may tell this program something: signals, and the launcher, by its end of the pipe or by its death."""

    def __init__(self, detached: bool = False, limit: bool = False) -> None:
        """detached: nobody holds the pipe. limit: USR1 makes the file `leave`."""
        self.detached = detached
        self.leave = Path(tempfile.gettempdir()) / f"lfhelpers-leave-{uuid.uuid4()}" if limit else None
        self._parent = os.getppid()
        self._wake = _listen([signal.SIGUSR1] if limit else [])

    def hear(self, seconds: float) -> str | None:
        """Wait until something happens, `seconds` at most; a reason to end the job, if that is one."""
        readable, _, _ = select.select([self._wake] if self.detached else [0, self._wake], [], [], seconds)
        if self._wake in readable:
            for number in os.read(self._wake, 64):
                if number == signal.SIGUSR1 and self.leave:
                    self.leave.touch()
                elif number != signal.SIGCHLD:
                    return f"the supervisor got {signal.Signals(number).name}"
        # A process forked from the launcher may hold the pipe open after the launcher's death: hence the second look.
        if (0 in readable and not os.read(0, 4096)) or os.getppid() != self._parent:
            return "the process that launched it is gone"
        return None

    def close(self) -> None:
        """Remove the file."""
        if self.leave:
            self.leave.unlink(missing_ok=True)


def _listen(more: list[signal.Signals]) -> int:
    """A descriptor that yields the number of each signal that comes, so that one select waits for everything."""
    receive, send = os.pipe()
    os.set_blocking(receive, False)
    os.set_blocking(send, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, *more):
        if not (number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN):  # nohup asked for that
            signal.signal(number, lambda *_: None)
    return receive
