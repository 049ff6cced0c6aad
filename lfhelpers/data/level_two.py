"""The second level of `two_level`: a process that augments batches where they lie, one after the other.

It imports neither torch nor scipy, and is ready after a quarter of a second. A batch comes as a task of a few numbers,
and goes as a reply of as few; its pixels are changed in their slot, so one ring serves both levels.
"""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from lfhelpers.data import augment
from lfhelpers.data.augment import Pixels
from lfhelpers.data.order import Ids
from lfhelpers.data.ring import Ring
from lfhelpers.errors import LfError

if TYPE_CHECKING:
    from lfhelpers.data.loader import Request

STANDARD = "lfhelpers.data.level_two:standard"
_LONGEST = 1000  # characters of an error's text: a message must fit a pipe's atomic write


class Task(NamedTuple):
    """A batch to augment: which one it is, where it lies, and MixUp's weight of its own samples (1: no MixUp)."""

    number: int
    slot: int
    epoch: int
    weight: float


class Reply(NamedTuple):
    """The batch is done: seconds spent on it and in waiting for it; error: what went wrong, empty if nothing."""

    number: int
    busy: float
    waited: float
    error: str


Work = Callable[[Pixels, Ids, Task], None]
"""Augments a batch in place: pixels uint8 [B, V, P, P, 3], ids int64 [B]."""


def standard(settings: Mapping[str, Any]) -> Work:
    """RandAugment of each sample, by settings seed, count and strength, then MixUp of the batch."""
    seed, count, strength = settings["seed"], settings["count"], settings["strength"]

    def work(pixels: Pixels, ids: Ids, task: Task) -> None:
        if count:
            chosen = augment.choose(seed, task.epoch, ids, count, strength)
            for views, kinds, values in zip(pixels, *chosen, strict=True):
                views[:] = augment.on_pillow(views, kinds, values)
        if task.weight < 1 and pixels.size:
            pixels[:] = augment.mix(pixels, task.weight)

    return work


def settings(request: Request, work: str | None) -> dict[str, Any]:
    """What the second level is told, beside its tasks; level_two.standard reads it."""
    data = request.job.data
    return {"work": work, "seed": request.plan.seed, "count": data.rand_augment, "strength": data.rand_magnitude}


def make(settings: Mapping[str, Any]) -> Work:
    """The work that settings["work"] names as "module:function", a function from settings to Work."""
    module, _, name = settings["work"].partition(":")
    return getattr(importlib.import_module(module), name)(settings)


def attempt(work: Work, pixels: NDArray[Any], ids: NDArray[Any], task: Task, waited: float = 0.0) -> Reply:
    """Do it, and tell how that went. The traceback goes to this process's log, the error's name and text to the reply.
    """
    began, error = time.perf_counter(), ""
    try:
        work(pixels, ids, task)
    except Exception as problem:
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"[:_LONGEST]
    return Reply(task.number, time.perf_counter() - began, waited, error)


def serve(pipe: Connection, rings: list[Ring], settings: Mapping[str, Any]) -> None:
    """The process: tasks of the ring of pixels and the ring of ids, until the pipe ends."""
    pixels, ids = rings
    work = make(settings)
    while True:
        began = time.perf_counter()
        try:
            task = Task(*pipe.recv())
            pipe.send(attempt(work, pixels[task.slot], ids[task.slot], task, time.perf_counter() - began))
        except (EOFError, ConnectionError):  # the loader was closed
            return


def failed(reply: Reply, step: int, micro: int) -> LfError:
    """The sentence for a reply with an error."""
    return LfError(f"augmentation of step {step}, micro-batch {micro}, in the second level raised {reply.error}; the "
                   "traceback is in this rank's log. It can be had alone with data.workers=0.")
