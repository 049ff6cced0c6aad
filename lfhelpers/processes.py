"""Process trees: who belongs to one, how to end it for certain, and how a child dies with its parent.

torchrun starts every worker in a session of its own, so a signal to a process group never reaches the workers, and
killing torchrun orphans them. Trees are therefore recorded member by member as (pid, start time), because the system
hands a pid out again, and looked up afresh while they are being ended, because dying programs still start others. One
scan of the process table costs about 30 us a process: nothing while a job is being ended, too much for a loop without
pauses.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from collections import defaultdict
from dataclasses import dataclass

import psutil

RUN = "LFHELPERS_RUN"  # in the environment of a job's processes: the run folder
SUPERVISOR = "LFHELPERS_SUPERVISOR"  # likewise: the supervisor's pid:start time
LEAVE = "LFHELPERS_LEAVE"  # likewise, where a time limit may come: the file whose coming asks ranks to save and leave
LEFT = 75  # the exit code of ranks, and of a job, that did so (EX_TEMPFAIL of sysexits.h)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLOCK_SLACK = 2.0  # seconds; psutil derives the start from the wall clock, which may be set while processes live


@dataclass(frozen=True)
class Member:
    """One process, told from a later one of the same pid by its start time in seconds since 1970."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Member | None:
        """The process that has this pid now, or None."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    @classmethod
    def parse(cls, text: str) -> Member:
        """The inverse of str(member)."""
        pid, _, started = text.partition(":")
        return cls(int(pid), float(started))

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie, which only waits to be read by its parent, has ended."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _CLOCK_SLACK
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def send(self, signum: int) -> None:
        """Send a signal, unless it has ended or its pid belongs to another process by now."""
        if self.alive:
            try:
                os.kill(self.pid, signum)
            except ProcessLookupError:
                return


def descendants(*pids: int) -> set[Member]:
    """All children, grandchildren and so on that the processes have now; the processes themselves are left out."""
    children = defaultdict(list)
    for process in psutil.process_iter(["ppid", "create_time"]):
        children[process.info["ppid"]].append(process)
    found: set[Member] = set()
    queue, seen = list(pids), set(pids)
    while queue:
        for process in children[queue.pop()]:
            if process.pid not in seen:
                seen.add(process.pid)
                queue.append(process.pid)
                found.add(Member(process.pid, process.info["create_time"]))
    return found


def end_tree(top: Member, known: set[Member], grace: float = 3.0, kill: float = 1.5,
             search: int | None = None) -> set[Member]:
    """End `top` and its whole tree; returns the members still alive `kill` seconds after the first KILL, normally none.

    TERM goes to `top` alone, which is expected to end its own; members that outlive it get their own TERM, and whatever
    is left after `grace` seconds gets KILL. `known`, the members recorded so far, is kept up to date; children are also
    looked for under `search` (default: `top`), the process that adopts orphans.
    """
    told: set[Member] = set()
    deadline, last = time.monotonic() + grace, math.inf
    known.add(top)
    while living := _refresh(known, search or top.pid):
        now = time.monotonic()
        if now > last:
            break
        gentle = now < deadline
        targets = ({top} if top in living else living) - told if gentle else living
        for member in targets:
            member.send(signal.SIGTERM if gentle else signal.SIGKILL)
        if gentle:
            told |= targets
        else:
            last = min(last, now + kill)
        time.sleep(0.05)
    return living


def die_with_parent(parent: int | None = None) -> tuple[bool, str]:
    """Have the kernel KILL this process when its parent ends; (whether that is armed, why not).

    `parent` is the pid that the caller expects: if it is gone already, or the job's supervisor is, this process ends
    here. Linux ties the signal to the parent's thread that started the child: start children from a thread that stays.
    """
    armed, reason = _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call above; then no signal will ever come. The supervisor's end takes torchrun
    # with it, so a rank that starts in that moment finds it gone here or is told by the kernel later.
    supervisor = os.environ.get(SUPERVISOR)
    if (parent and os.getppid() != parent) or (supervisor and not Member.parse(supervisor).alive):
        os.kill(os.getpid(), signal.SIGKILL)
    return armed, reason


def adopt_orphans() -> tuple[bool, str]:
    """Make orphans among this process's descendants its own children, so none is lost; (whether it holds, why not)."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _refresh(known: set[Member], search: int) -> set[Member]:
    """Add the present descendants of `search` and of every living member; returns the living."""
    living = {member for member in known if member.alive}
    known |= descendants(search, *(member.pid for member in living))
    return {member for member in known if member.alive}


def _prctl(option: int, value: int) -> tuple[bool, str]:
    if sys.platform != "linux":
        return False, f"{sys.platform} has no prctl; the supervisor's own watch is all there is"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        return False, f"prctl failed: {os.strerror(ctypes.get_errno())}"
    return True, ""
