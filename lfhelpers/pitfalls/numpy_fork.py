"""Forked workers inherit NumPy's state: all of them draw the same numbers."""

from __future__ import annotations

import functools
import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

from lfhelpers.data import draws
from lfhelpers.pitfalls.base import About, repeated

ABOUT = About(
    "augmentation looks weaker than it should: samples of different workers get the same crops",
    "np.random is a state of the process, and a fork copies it",
    "draw from a function of (seed, epoch, sample), which has no state to copy",
    "draws that another worker made before [%]")
WORKERS, EACH = 4, 8


def break_it() -> float:
    """Percent of the draws of four forked workers that repeat another one's."""
    return repeated(_forked(stateless=False))


def detect(broken: bool = True) -> str:
    """Which share of the draws repeats; empty for none."""
    share = repeated(_forked(stateless=not broken))
    return f"{share:.0f} % of the augmentation draws repeat another worker's" if share else ""


def fix_it() -> float:
    """The same, drawn as the data engines draw."""
    return repeated(_forked(stateless=True))


@functools.cache
def _forked(stateless: bool) -> list[float]:
    context = multiprocessing.get_context("fork")
    found: list[float] = []
    for worker in range(WORKERS):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_draw, args=(sender, worker, stateless))
        process.start()
        found += receiver.recv()
        process.join()
    return found


def _draw(sender: Connection, worker: int, stateless: bool) -> None:
    samples = np.arange(worker * EACH, (worker + 1) * EACH)
    sender.send([float(number) for number in
                 (draws.uniform(0, 0, samples, draws.CROP)[:, 0] if stateless else np.random.random(EACH))])
