"""Between the notebook and torchrun: it ends the whole job when its launcher is gone or a signal comes.

`python -m lfhelpers.launch.supervisor RUN_FOLDER --nproc N [--port P] -- MODULE ARGS...`

The launcher holds the other end of this program's stdin. However the launcher dies, also by KILL, the pipe closes, and
the job is ended: TERM to torchrun, which forwards it, then KILL by pid and start time for what is left after GRACE
seconds. If this program itself is killed, the system kills torchrun, and with it the ranks. It stays in the launcher's
process group, so that Jupyter's Stop button reaches it; torchrun gets a session of its own, so that Stop does not
reach it past this program.

Exit codes: 0 done, 1 failed, 2 not started, 130 stopped. It imports no torch, so that it listens early.
"""

from __future__ import annotations

import argparse
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from lfhelpers import processes
from lfhelpers.errors import LfError
from lfhelpers.launch import checks, failures
from lfhelpers.launch.watch import last_step
from lfhelpers.runs import Run

GRACE = 3.0  # seconds between TERM and KILL
LOOK = 1.0  # seconds between looks at the tree and at the launcher, when nothing happens
DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run one job to its end and leave its status in the run folder; returns the exit code."""
    job = _parser().parse_args(argv)
    run = Run(Path(job.run).absolute())
    wake = _listen()
    try:
        if job.port is not None:
            checks.check_port(job.port)
    except LfError as error:
        print(error, file=sys.stderr)
        return REFUSED
    processes.adopt_orphans()
    torchrun = start_torchrun(run, job.nproc, job.port, [job.module, *job.args])
    top, known = processes.Member.of(torchrun.pid), set[processes.Member]()
    assert top is not None  # a child that nobody has waited for keeps its pid
    try:
        run.set_status("running", pid=os.getpid(), nproc=job.nproc)
        why = wait(torchrun, wake, known)
    finally:
        left = processes.end_tree(top, known, GRACE, search=os.getpid())
    if left:
        print(f"still alive after KILL: {', '.join(str(member.pid) for member in left)}", file=sys.stderr)
    return settle(run, why, torchrun.wait() if top not in left else -signal.SIGKILL)


def start_torchrun(run: Run, nproc: int, port: int | None, module: list[str]) -> subprocess.Popen[bytes]:
    """torchrun in a session of its own, with its output in logs/torchrun.log; `module` is a name and its arguments."""
    logs = run.path / "logs"
    shutil.rmtree(logs / "torchrun", ignore_errors=True)  # error files of an earlier start of this run
    meet = ["--standalone"] if port is None else ["--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    command = [sys.executable, "-m", "torch.distributed.run", *meet, "--local-addr=127.0.0.1",
               f"--nproc-per-node={nproc}", f"--log-dir={logs / 'torchrun'}", "-m", "lfhelpers.launch.rank", *module]
    with (logs / "torchrun.log").open("wb") as log:
        return subprocess.Popen(command, env=_environment(run, nproc), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                start_new_session=True,
                                preexec_fn=functools.partial(processes.die_with_parent, os.getpid()))


def wait(torchrun: subprocess.Popen[bytes], wake: int, known: set[processes.Member]) -> str | None:
    """Wait for torchrun's end (None) or for a reason to end it; `known` is filled with the tree's members."""
    parent, me = os.getppid(), os.getpid()
    while torchrun.poll() is None:
        readable, _, _ = select.select([0, wake], [], [], LOOK)
        if wake in readable:
            for number in os.read(wake, 64):
                if number != signal.SIGCHLD:
                    return f"the supervisor got {signal.Signals(number).name}"
        # A process forked from the launcher may hold the pipe open after the launcher's death: hence the second look.
        if (0 in readable and not os.read(0, 4096)) or os.getppid() != parent:
            return "the process that launched it is gone"
        known |= processes.descendants(me)
    return None


def settle(run: Run, why: str | None, exit_code: int) -> int:
    """Write the final status; `why` is what ended the job from outside, `exit_code` torchrun's."""
    if why:
        run.set_status("stopped", why, step=last_step(run))
        return STOPPED
    if exit_code == 0:
        run.set_status("done")
        return DONE
    failure = failures.first(run, exit_code)
    run.set_status("failed", failure.reason, rank=failure.rank, exit_code=failure.exit_code, report=failure.report)
    return FAILED


def _environment(run: Run, nproc: int) -> dict[str, str]:
    """What the ranks find in their environment; what the caller has set stays.

    Threads: a rank's share of the cores less those of its data workers, since torchrun would give each rank one only.
    They wait passively: spinning threads that share cores with workers made steps ten times as long (2 cores, seen).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    data = run.recipe.data
    workers = 0 if data.loader == "synthetic" else cores if data.workers is None else data.workers
    return {"OMP_NUM_THREADS": str(max(1, cores // nproc - workers)), "OMP_WAIT_POLICY": "PASSIVE",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10", **os.environ, "PYTHONUNBUFFERED": "1",
            processes.RUN: str(run.path), processes.SUPERVISOR: str(processes.Member.of(os.getpid()))}


def _listen() -> int:
    """A descriptor that yields the number of each signal that comes, so that one select waits for everything."""
    receive, send = os.pipe()
    os.set_blocking(receive, False)
    os.set_blocking(send, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        if not (number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN):  # nohup asked for that
            signal.signal(number, lambda *_: None)
    return receive


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lfhelpers.launch.supervisor", description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder")
    parser.add_argument("--nproc", type=int, default=1, help="ranks")
    parser.add_argument("--port", type=int, help="TCP port where the ranks meet; none given: a free one")
    parser.add_argument("module", help="after --: what each rank runs, as in python -m MODULE")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the module's arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
