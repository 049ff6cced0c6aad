"""What runs as each rank: the job's module, in this same process, with its output in the run folder.

`python -m lfhelpers.launch.rank MODULE ARGS...` does what `python -m MODULE ARGS...` does. Before that it arranges,
ahead of the slow imports, that the rank dies with its parent and that all it prints goes to logs/rank-N.log as it is
printed (torchrun's own --redirects splits stdout from stderr, in a folder of random name). After a failure it records
the exception where torchrun looks for it, also for a module that does not use torch's `record`.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from lfhelpers import processes
from lfhelpers.errors import LfError
from lfhelpers.launch.failures import HEADER

LINGER = 10.0  # seconds that the exit functions of a failed rank may take
TIDY = 120.0  # seconds that those of a rank may take that has done its work


def main(argv: list[str]) -> None:
    """Run the module argv[0] with the arguments argv[1:]; exits with 1 after an exception, else as the module does."""
    processes.die_with_parent()
    _open_log()
    faulthandler.enable()  # a crash in C code leaves its Python stack in the log
    module, *arguments = argv
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        text = _own_traceback(error)
        print(text, end="", file=sys.stderr, flush=True)
        _record(error, text)
        _leave(1)
    except SystemExit as end:
        if not isinstance(end.code, int):  # words, which Python prints, or none
            raise
        _leave(end.code)
    _leave(0)  # what Python would tidy up ends with the process; with torch loaded that takes a second


def _leave(code: int) -> NoReturn:
    """End the process after its exit functions, but without Python's own end.

    There a process group that is still open aborts (signal 6 and a core dump) or waits, as a forgotten thread does, and
    torchrun, unaware, would let the other ranks wait too. After any exception it is open: the frames of the traceback
    hold the model that DDP wraps.
    """
    faulthandler.dump_traceback_later(LINGER if code else TIDY, exit=True)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _open_log() -> None:
    rank, ranks = os.environ["RANK"], os.environ["WORLD_SIZE"]
    path = Path(os.environ[processes.RUN]) / "logs" / f"rank-{rank}.log"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    print(f"{HEADER}{rank} of {ranks}, pid {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S')}", flush=True)


def _own_traceback(error: Exception) -> str:
    """The traceback from the module's first frame on."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _record(error: Exception, text: str) -> None:
    """The exception in torchelastic's error file, with two fields more: the rank, and the sentence of an LfError."""
    record = {"message": f"{type(error).__name__}: {error}", "rank": int(os.environ["RANK"]),
              "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))},
              "sentence": str(error) if isinstance(error, LfError) else None}
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        Path(path).write_text(json.dumps({"message": record}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
