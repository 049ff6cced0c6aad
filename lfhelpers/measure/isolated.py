"""One measurement in a process of its own: it starts clean, and its crash or hang costs that measurement alone.

The process is forked, so imports are paid for once; the price is that the caller must not have used CUDA, whose state
doesn't survive a fork. torch's threads don't either: a caller that has computed would leave it waiting for threads that
aren't there, so torch computes with one thread here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import IO, Any, TypeVar

from lfhelpers import processes
from lfhelpers.errors import LfError

T = TypeVar("T")
GRACE = 5.0  # seconds in which a process that has answered may end by itself


def call(function: Callable[..., T], *args: Any, timeout: float = 120.0) -> T:
    """function(*args) from a forked process; the answer must be picklable, the process and its tree are gone after it.

    Raises LfError with the sentence of what was raised there, or saying how the process ended, or that `timeout`
    seconds were not enough. What it prints is shown only as far as a crash is explained by its last line.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as log:
        child = context.Process(target=_run, args=(function, args, sender, log.fileno(), os.getpid()))
        with warnings.catch_warnings():  # Python 3.12 warns of any thread, also of those that sleep in libraries
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            child.start()
        sender.close()
        try:
            ready = wait([receiver, child.sentinel], timeout)
            if not ready:
                raise LfError(f"it did not end within {timeout:.0f} s.")
            answer = receiver.recv() if receiver.poll() else None
        except EOFError:
            answer = None
        finally:
            receiver.close()
            _end(child, GRACE if ready else 0.0)
        if answer is None:
            raise LfError(_death(child.exitcode or 0, log))
    good, value = answer
    if not good:
        raise LfError(value)
    return value


def _run(function: Callable[..., Any], args: tuple[Any, ...], sender: Connection, log: int, parent: int) -> None:
    processes.die_with_parent(parent)
    for stream in (1, 2):
        os.dup2(log, stream)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    try:
        answer = True, function(*args)
    except LfError as error:
        answer = False, str(error)
    except Exception as error:  # whatever it is, the caller goes on with the next measurement
        answer = False, f"{type(error).__name__}: {error}"
    left = processes.descendants(os.getpid())  # here: once this process is gone, nobody knows they were its
    for member in left:
        member.send(signal.SIGKILL)
    while any(member.alive for member in left):  # no longer than the caller's timeout
        time.sleep(0.01)
    sender.send(answer)
    sender.close()


def _end(child: multiprocessing.process.BaseProcess, grace: float) -> None:
    """Wait for the process, then end it with all that it started."""
    assert child.pid is not None
    top = processes.Member.of(child.pid)
    known = processes.descendants(child.pid)
    child.join(grace)
    if top is not None and (child.is_alive() or any(member.alive for member in known)):
        processes.end_tree(top, known, grace=0.5)
    child.join()


def _death(code: int, log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"its process {how}" + (f": {lines[-1].strip()}" if lines else ".")
