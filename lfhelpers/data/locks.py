"""Locks on files between the processes of a host; the system takes them from an owner that dies.

flock and not fcntl's record locks: those are lost as soon as the process closes any descriptor of the file, which
another thread may do. Its own drawback is that forks share a lock, and is dealt with here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path


class Locked:
    """A descriptor that can hold a lock, until it is closed; a forked child gets neither."""

    def __init__(self, path: str | Path, flags: int = os.O_RDONLY) -> None:
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        _HELD.add(self)

    def shared(self) -> None:
        """Wait for a lock that others may share, or turn this one's own into such."""
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)

    def exclusive(self, wait: bool = False) -> bool:
        """Take the lock for this one alone; False where another has any, unless `wait`."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def named(self, path: str | Path) -> bool:
        """Whether `path` still is this file: it may have been renamed or removed while its lock was waited for."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path))
        return False

    def close(self) -> None:
        """Let go of the file and its lock. Further calls do nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self.close()

    def __enter__(self) -> Locked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_HELD: weakref.WeakSet[Locked] = weakref.WeakSet()


def _let_go() -> None:
    """In a forked child: a lock belongs to the open file, which a fork shares, and would outlive its owner."""
    for file in list(_HELD):
        file.close()


os.register_at_fork(after_in_child=_let_go)
