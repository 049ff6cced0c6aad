"""Between the notebook and the ranks: it ends the whole job when its launcher is gone or a signal comes.

`python -m lfhelpers.launch.supervisor RUN_FOLDER --nproc N [--port P] [--hosts A,B --node I] -- MODULE ARGS...`

What is said of torchrun here holds for a rank that has no peers, which is started without it (torchrun.py).

The launcher holds the other end of this program's stdin. However the launcher dies, also by KILL, the pipe closes, and
the job is ended: TERM to torchrun, which forwards it, then KILL by pid and start time for what is left after GRACE
seconds. If this program itself is killed, the system kills torchrun, and with it the ranks. It stays in the launcher's
process group, so that Jupyter's Stop button reaches it; torchrun gets a session of its own, so that Stop does not
reach it past this program. With --detached nobody holds its stdin: a shell on another host, or Slurm, started it.

With --hosts it is one of several, which look after each other (hosts.py). With --limit a time limit may come: USR1 then
asks the ranks to write a checkpoint and leave. Slurm sends signals to every process of a job, so torchrun and all below
it ignore USR1, and ranks look for a file instead.

Exit codes: 0 done, 1 failed, 2 not started, 75 left before a time limit, 130 stopped. It imports no torch, so that it
listens early.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

from lfhelpers import processes
from lfhelpers.errors import LfError
from lfhelpers.launch import checks, failures
from lfhelpers.launch.crew import Crew
from lfhelpers.launch.ears import Ears
from lfhelpers.launch.hosts import Place
from lfhelpers.launch.torchrun import start
from lfhelpers.launch.watch import last_step
from lfhelpers.runs import Run

GRACE = 3.0  # seconds between TERM and KILL
LOOK = 1.0  # seconds between looks at the tree and at the launcher, when nothing happens
DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run one job, or one host's part of it, to its end and leave its status in the run folder; returns the exit code.
    """
    job = _parser().parse_args(argv)
    run = Run(Path(job.run).absolute())
    ears = Ears(job.detached, job.limit)
    crew = Crew(run, Place(tuple(job.hosts.split(",")), job.node, job.port, job.start)) if job.hosts else None
    try:
        why, exit_code = _prepare(run, job, crew, ears), -signal.SIGTERM
        if why is None:
            why, exit_code = _run(run, job, crew, ears)
    except LfError as error:
        print(error, file=sys.stderr)
        return _refuse(run, crew, error)
    finally:
        ears.close()
    return settle_all(run, crew, why, exit_code) if crew else settle(run, why, exit_code)


def _prepare(run: Run, job: argparse.Namespace, crew: Crew | None, ears: Ears) -> str | None:
    """Look at the port and wait for the other hosts; a reason to end, if one came meanwhile. LfError: not started."""
    if job.port is not None and job.node == 0:
        checks.check_port(job.port)
    if crew is None:
        return None
    if crew.place.node == 0:
        run.set_status("running", "waiting for the other hosts", pid=os.getpid(), host=platform.node())
    return crew.meet(lambda: ears.hear(0.2))


def _run(run: Run, job: argparse.Namespace, crew: Crew | None, ears: Ears) -> tuple[str | None, int]:
    """Run torchrun to its end; (what ended it from outside, its exit code)."""
    processes.adopt_orphans()
    torchrun = start(run, job.nproc, job.port, [job.module, *job.args], crew.place if crew else None, ears.leave)
    top, known = processes.Member.of(torchrun.pid), set[processes.Member]()
    assert top is not None  # a child that nobody has waited for keeps its pid
    try:
        if crew is None or crew.place.node == 0:
            run.set_status("running", pid=os.getpid(), nproc=job.nproc, **({"host": platform.node()} if crew else {}))
        why = wait(torchrun, ears, known, crew)
    finally:
        left = processes.end_tree(top, known, GRACE, search=os.getpid())
    if left:
        print(f"still alive after KILL: {', '.join(str(member.pid) for member in left)}", file=sys.stderr)
    return why, torchrun.wait() if top not in left else -signal.SIGKILL


def wait(torchrun: subprocess.Popen[bytes], ears: Ears, known: set[processes.Member],
         crew: Crew | None = None) -> str | None:
    """Wait for torchrun's end (None) or for a reason to end it; `known` is filled with the tree's members."""
    me = os.getpid()
    while torchrun.poll() is None:
        if why := ears.hear(LOOK) or (crew.lost() if crew else None):
            return why
        known |= processes.descendants(me)
    # Slurm tells ranks and this program at once that they must end, and ranks may be quicker.
    return ears.hear(0.2) if ears.detached and torchrun.returncode else None


def settle(run: Run, why: str | None, exit_code: int) -> int:
    """Write the final status; `why` is what ended the job from outside, `exit_code` torchrun's."""
    if why:
        run.set_status("stopped", why, step=last_step(run))
        return STOPPED
    if exit_code == 0:
        run.set_status("done")
        return DONE
    failure = failures.first(run, exit_code)
    if failure.exit_code == processes.LEFT:
        step = last_step(run)
        run.set_status("stopped", f"left before the time limit, with a checkpoint of step {step}", step=step)
        return processes.LEFT
    run.set_status("failed", failure.reason, rank=failure.rank, exit_code=failure.exit_code, report=failure.report)
    return FAILED


def settle_all(run: Run, crew: Crew, why: str | None, exit_code: int) -> int:
    """The same for one host of several: one writes the status when all have ended; the others wait until it has."""
    reasons = crew.end(None if why == crew.blamed else why, exit_code)
    if not crew.speaks:
        return crew.ended(run)
    if reasons or crew.done:
        return settle(run, reasons[0] if reasons else None, exit_code)
    failure = failures.first(run, exit_code)
    if failure.symptom and crew.silent:
        gone = f"{' and '.join(crew.silent)} is gone: no word from it, and the ranks here lost their peers"
        run.set_status("failed", gone, report="\n".join([f"{gone}.", "", failure.report]))
        return FAILED
    return settle(run, None, exit_code or FAILED)


def _refuse(run: Run, crew: Crew | None, error: LfError) -> int:
    """Leave word that the job was not started; without other hosts the launcher reads it from this program's log."""
    if crew is not None:
        crew.end(None, REFUSED)
        if crew.speaks:
            run.set_status("failed", str(error), report=str(error))
    return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lfhelpers.launch.supervisor", description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder")
    parser.add_argument("--nproc", type=int, default=1, help="ranks")
    parser.add_argument("--port", type=int, help="TCP port where the ranks meet; none given: a free one")
    parser.add_argument("--hosts", help="the job's hosts, separated by commas; none given: this one alone")
    parser.add_argument("--node", type=int, default=0, help="which of the hosts this one is, from 0 on")
    parser.add_argument("--start", default="", help="a name that all hosts of this start have in common")
    parser.add_argument("--detached", action="store_true", help="go on without a launcher that holds stdin")
    parser.add_argument("--limit", action="store_true", help="at USR1 ask the ranks for a checkpoint, and to leave")
    parser.add_argument("module", help="after --: what each rank runs, as in python -m MODULE")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the module's arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
