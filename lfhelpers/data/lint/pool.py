"""Shards in parallel, one a process, with one progress bar over their bytes.

Processes and not threads, because headers of small members are parsed in Python and images decoded for the most part
outside it. They are spawned, which costs half a second, so small sets are done in this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from lfhelpers.errors import LfError
from lfhelpers.measure.hardware import usable_cores
from lfhelpers.processes import die_with_parent

Result = TypeVar("Result")
Progress = Callable[[int], None]
SMALL = 64 * 2**20
"""Bytes up to which a set is read in this process."""
READERS = 5
"""Processes that read and hash: 2 GB/s each, more than most disks give, and under 500 MB of memory together."""

GRACE = 10.0  # seconds for a worker to end by itself


class _Stopped(Exception):
    """The parent has asked the workers to end."""


def choose_jobs(jobs: int | None, paths: Sequence[Path], decode: bool) -> int:
    """The caller's number of processes, or one that suits the work. Raises LfError for less than 1."""
    if jobs is not None:
        if jobs < 1:
            raise LfError(f"jobs = {jobs} can't be worked with; give 1 or more.")
        return jobs
    size = sum(path.stat().st_size for path in paths)
    most = usable_cores() if decode else min(usable_cores(), READERS)
    return min(most, len(paths)) if size > (SMALL // 16 if decode else SMALL) else 1


def each(function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], sizes: Sequence[int], jobs: int, what: str,
         progress: bool) -> list[Result]:
    """function(*call, progress) of all calls, in their order; `sizes` are the bytes that each will report.

    jobs: processes, for which function and calls must be picklable; 1 works in this one. A Ctrl-C ends all of them.
    """
    disable = None if progress and calls else True  # None: tqdm shows it on a terminal alone
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, desc=what, disable=disable) as bar:
        if jobs == 1 or len(calls) < 2:
            return [function(*call, bar.update) for call in calls]
        return _parallel(function, calls, min(jobs, len(calls)), bar)


@dataclass(frozen=True)
class _Worker:
    """A process and the pipe to it: calls go in, results come out, and it is at its end when the process is."""

    process: BaseProcess
    pipe: Connection

    @classmethod
    def start(cls, context: SpawnContext, *shared: Any) -> _Worker:
        pipe, theirs = context.Pipe()
        process: BaseProcess = context.Process(target=_work, args=(theirs, os.getpid(), *shared), daemon=True)
        process.start()
        theirs.close()
        return cls(process, pipe)

    def give(self, place: int, call: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # it has died: receive tells
            self.pipe.send((place, call))

    def receive(self) -> tuple[int, Any]:
        """(place, result) of its call. Raises what the call raised, or LfError where the process has died."""
        try:
            place, result, error = self.pipe.recv()
        except (EOFError, OSError) as lost:
            self.process.join()
            code = self.process.exitcode or 0
            raise LfError(f"a worker process was killed by signal {-code}, most likely for want of memory; give fewer "
                          "jobs." if code < 0 else f"a worker process ended with code {code}, its message is above; "
                          "try jobs=1.") from lost
        if error is not None:
            raise error
        return place, result

    def end(self) -> None:
        self.pipe.close()
        self.process.join(GRACE)
        self.process.kill()
        self.process.join()


def _parallel(function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], jobs: int,
              bar: tqdm[Any]) -> list[Result]:
    context = multiprocessing.get_context("spawn")
    # Without locks, one number a call: a worker that is killed while it holds a lock would stop all others for ever.
    # That is also why this is no ProcessPoolExecutor, which may overlook that the process it started last has died.
    done, stop = context.RawArray("q", len(calls)), context.RawValue("b", 0)
    results: dict[int, Result] = {}
    todo = iter(enumerate(calls))
    workers: list[_Worker] = []
    try:
        for _ in range(jobs):
            workers.append(_Worker.start(context, function, done, stop))
            workers[-1].give(*next(todo))
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in workers}
        while busy:
            for pipe in wait(list(busy), timeout=0.2):
                place, result = busy[pipe].receive()
                results[place] = result
                if more := next(todo, None):
                    busy[pipe].give(*more)
                else:
                    del busy[pipe]
            bar.update(sum(done) - bar.n)
        return [results[place] for place in range(len(calls))]
    finally:
        stop.value = 1
        for worker in workers:
            worker.end()


def _work(pipe: Connection, parent: int, function: Callable[..., Any], done: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and stops all in order
    die_with_parent(parent)

    def tick(count: int) -> None:
        done[place] += count
        if stop.value:
            raise _Stopped

    with contextlib.suppress(EOFError, _Stopped, BrokenPipeError):  # no more calls, or nobody who wants results
        while True:
            place, call = pipe.recv()
            try:
                answer: tuple[int, Any, Exception | None] = place, function(*call, tick), None
            except _Stopped:
                raise
            except Exception as error:
                answer = place, None, error
            pipe.send(answer)
