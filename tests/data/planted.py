"""What tests have spawned processes do: entries of `Spawned`, and works of the second level that go wrong or are slow.

Processes import this file: no torch here.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from lfhelpers.data.augment import Pixels
from lfhelpers.data.level_two import Task, Work
from lfhelpers.data.order import Ids
from lfhelpers.data.ring import Ring


def doubling(pipe: Connection, rings: list[Ring], settings: Mapping[str, Any]) -> None:
    """Doubles what is in the slots whose numbers come, until the pipe ends; `leave` makes it exit with that code."""
    for slot in iter(pipe.recv, None):
        rings[0][slot][...] *= 2
        pipe.send(slot)
    sys.exit(settings.get("leave", 0))


def telling(pipe: Connection, rings: list[Ring], settings: Mapping[str, Any]) -> None:
    """What a spawned process is like."""
    pipe.send({"torch": "torch" in sys.modules, "scipy": "scipy" in sys.modules, "gpus": os.environ[
        "CUDA_VISIBLE_DEVICES"], "ctrl_c": signal.getsignal(signal.SIGINT) == signal.SIG_IGN, "parent": os.getppid()})


def failing(settings: Mapping[str, Any]) -> Work:
    """Raises at the fourth batch, brightens the others."""
    def work(pixels: Pixels, ids: Ids, task: Task) -> None:
        if task.number == 3:
            raise ValueError("no such colour")
        pixels[:] = 255

    return work


def slow(settings: Mapping[str, Any]) -> Work:
    """Takes as many milliseconds as RandAugment's strength says."""
    return lambda pixels, ids, task: time.sleep(settings["strength"] / 1e3)


def hanging(settings: Mapping[str, Any]) -> Work:
    """Never ends with the third batch."""
    return lambda pixels, ids, task: time.sleep(3600 if task.number == 2 else 0)
