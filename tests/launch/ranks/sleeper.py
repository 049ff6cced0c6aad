"""A rank that trains for ever: `python -m ranks.sleeper RUN [--steps N] [--then FILE] [--ignore-term] [--child KIND]`.

--then: after its steps it goes on until FILE is there. --child: plain or dying, a data worker.
"""

import argparse
import functools
import os
import signal
import subprocess
import time
from pathlib import Path

from lfhelpers.processes import die_with_parent
from lfhelpers.runs import Run

ROW = {"loss": 0.5, "samples": 32, "step_ms": 100.0, "ms": {"data_wait": 25.0, "forward": 75.0}, "probe": False}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--then", type=Path)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--child", choices=["plain", "dying"], default="plain")
    options = parser.parse_args()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A data worker: `plain` ones know nothing of their parent, `dying` ones ask the system to be ended with it.
    tied = functools.partial(die_with_parent, os.getpid()) if options.child == "dying" else None
    worker = subprocess.Popen(["sleep", "600"], preexec_fn=tied)
    for step in range(1, options.steps + 1):
        if os.environ["RANK"] == "0":
            Run(options.run).append_steps([ROW | {"step": step}])
        print(f"step {step} with {os.environ['OMP_NUM_THREADS']} threads, worker {worker.pid}", flush=True)
        time.sleep(0.05)
    while options.then and not options.then.exists():
        time.sleep(0.05)
    worker.kill()


if __name__ == "__main__":
    main()
