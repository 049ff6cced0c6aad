"""Helper processes that share rings with this one: fresh interpreters, each at the other end of a pipe of its own.

They are started with an exec and not forked, so they inherit no lock, no thread and no CUDA context, and may start at
any time. multiprocessing's spawn would do the same, but import the main module again (a notebook kernel's takes
seconds) and keep its locks in semaphores, which a killed process holds for ever. A pipe of its own needs no lock, and
its end tells at once of a process's end.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from lfhelpers.data.ring import Ring
from lfhelpers.processes import die_with_parent

_CODE = "from lfhelpers.data.spawned import main; main()"
_GRACE = 2.0  # seconds

Entry = Callable[[Connection, list[Ring], Mapping[str, Any]], None]


class Spawned:
    """A process that runs `entry`, "module:function" of an Entry, and is over when that returns.

    settings: what JSON can hold. Its pipe is `pipe`; keep messages below 4 KiB, which pass whole or not at all.
    """

    def __init__(self, entry: str, rings: Sequence[Ring], settings: Mapping[str, Any]) -> None:
        self.pipe, theirs = Pipe()
        order = {"entry": entry, "parent": os.getpid(), "pipe": theirs.fileno(), "settings": dict(settings),
                 "rings": [ring.spec for ring in rings]}
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
                                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self.process = subprocess.Popen([sys.executable, "-c", _CODE, json.dumps(order)], stdin=subprocess.DEVNULL,
                                            env=environment, pass_fds=[theirs.fileno(), *(ring.fd for ring in rings)])

    def cause(self) -> str:
        """Why it ended, once its pipe has: "signal 9 (Killed)" or "exit code 1"."""
        try:
            code = self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"

    def end(self) -> None:
        """End it and wait for that. It holds nothing that would have to be put in order. Further calls do nothing."""
        self.pipe.close()
        self.process.terminate()
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main() -> None:
    """What the new interpreter runs."""
    order = json.loads(sys.argv[1])
    die_with_parent(order["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and ends this one
    module, _, name = order["entry"].partition(":")
    entry: Entry = getattr(importlib.import_module(module), name)
    with Connection(order["pipe"]) as pipe:
        entry(pipe, [Ring.of(spec) for spec in order["rings"]], order["settings"])
