"""Writer processes: each takes the next shard that nobody has, until none is left.

A shared number hands out the work and another counts finished samples, so there is no queue that a killed process
could leave half written. Writers are spawned: they inherit no threads or locks, and pay for it with half a second of
imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lfhelpers.data.tar import Packing, Sample, write_shard
from lfhelpers.errors import LfError

GRACE = 10.0  # seconds for a writer to end its present sample before it is terminated


@dataclass(frozen=True)
class _Shared:
    """Numbers in memory that all writers and their parent see."""

    taken: Any
    samples: Any
    stop: Any


class _Stopped(Exception):
    """The parent has asked the writers to end, or is gone."""


def run(building: Path, packing: Packing, sample: Sample, todo: Sequence[int], jobs: int, bar: tqdm[Any]) -> None:
    """Write the shards `todo` with `jobs` processes. Raises the first error of a writer, after all have ended."""
    context = multiprocessing.get_context("spawn")
    shared = _Shared(*(context.Value("q", 0) for _ in range(3)))
    writers: list[BaseProcess] = []
    reports: list[Connection] = []
    try:
        for _ in range(jobs):
            report, theirs = context.Pipe(duplex=False)
            writer: BaseProcess = context.Process(target=_write, daemon=True,
                                     args=(building, packing, sample, list(todo), shared, theirs, os.getpid()))
            writer.start()
            theirs.close()
            writers.append(writer)
            reports.append(report)
        _watch(writers, reports, shared, bar)
    finally:
        shared.stop.value = 1
        for writer in writers:
            writer.join(GRACE)
            writer.kill()
            writer.join()


def _watch(writers: list[BaseProcess], reports: list[Connection], shared: _Shared, bar: tqdm[Any]) -> None:
    start = bar.n
    while living := [writer.sentinel for writer in writers if writer.is_alive()]:
        wait(living, timeout=0.2)
        bar.update(start + shared.samples.value - bar.n)
        for writer, report in zip(writers, reports, strict=True):
            if error := _error(writer, report):
                raise error
    for writer, report in zip(writers, reports, strict=True):
        if error := _error(writer, report):
            raise error
    bar.update(start + shared.samples.value - bar.n)


def _error(writer: BaseProcess, report: Connection) -> Exception | None:
    """What a writer reported before it ended, or that it ended without a word."""
    try:
        if report.poll():
            return report.recv()
    except EOFError:
        pass
    if not writer.exitcode:
        return None
    if writer.exitcode > 0:
        return LfError(f"a writer process ended with code {writer.exitcode}, its message is above; what makes the "
                       "samples must be importable from a module, or give jobs=1.")
    return LfError(f"a writer process was killed by signal {-writer.exitcode}, most likely for want of memory; give "
                   "fewer jobs; the finished shards are kept.")


def _write(building: Path, packing: Packing, sample: Sample, todo: list[int], shared: _Shared, report: Connection,
           parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and stops all writers in order

    def tick() -> None:
        with shared.samples.get_lock():
            shared.samples.value += 1
        if shared.stop.value or os.getppid() != parent:
            raise _Stopped

    try:
        while (position := _take(shared)) < len(todo):
            write_shard(building, packing, todo[position], sample, tick)
    except _Stopped:
        pass
    except (OSError, LfError) as error:
        report.send(error)


def _take(shared: _Shared) -> int:
    with shared.taken.get_lock():
        shared.taken.value += 1
        return shared.taken.value - 1
