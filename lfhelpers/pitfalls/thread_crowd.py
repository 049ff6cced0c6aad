"""Each process computes with a thread for every core, and there are several processes."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from lfhelpers.pitfalls.base import About
from lfhelpers.train.straggler import Seen, crowded, my_cores

ABOUT = About(
    "two processes on a host take far longer than one, and all cores are busy",
    "without OMP_NUM_THREADS each of them starts as many threads as there are cores, and they take turns",
    "divide the cores among ranks and workers before they start; lfhelpers does, unless the variable is set",
    "threads that compute, a core")
PROCESSES = 2
ASKS = "import torch; print(torch.get_num_threads())"


def break_it() -> float:
    """Threads of two processes by core, as torch starts them."""
    return sum(_threads(shared=False)) / len(my_cores())


def detect(broken: bool = True) -> str:
    """What `check` says of two ranks with so many threads; empty where they share the cores."""
    counts = _threads(shared=not broken)
    return crowded([Seen({}, [], "this host", 0.0, 0.0, {}, my_cores(), count) for count in counts])


def fix_it() -> float:
    """The same where each has its share of the cores."""
    return sum(_threads(shared=True)) / len(my_cores())


@functools.cache
def _threads(shared: bool) -> list[int]:
    """What each of the processes says, all of them running at once."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if shared:
        environment["OMP_NUM_THREADS"] = str(max(1, len(my_cores()) // PROCESSES))
    started = [subprocess.Popen([sys.executable, "-c", ASKS], env=environment, stdout=subprocess.PIPE, text=True)
               for _ in range(PROCESSES)]
    return [int(process.communicate()[0]) for process in started]
