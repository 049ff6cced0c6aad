"""Training jobs from a notebook or a shell: start torchrun, or a rank alone, watch it, and leave nothing behind.

A job is always a child process of a light supervisor (see supervisor.py), never code of the notebook's own process:
forking a kernel that touched CUDA fails, functions of a cell can't be pickled, and a kernel that dies would leave ranks
that hold GPUs. The price is a start of a few seconds, and that what runs must be a module.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

import psutil

from lfhelpers import processes, runs
from lfhelpers.errors import LfError
from lfhelpers.launch import checks
from lfhelpers.launch import hosts as several
from lfhelpers.launch.failures import ending, log_tail
from lfhelpers.launch.hosts import Place
from lfhelpers.launch.watch import follow, last_step, screen, status_line, watch
from lfhelpers.measure import formats, hardware
from lfhelpers.recipe import Recipe, diff
from lfhelpers.runs import Run

__all__ = ["Job", "LaunchError", "launch", "start", "status_line", "stop", "watch", "written"]

STOP = 15.0  # seconds after which a supervisor that does not end its job is ended itself
_running: set[Job] = set()  # keeps dropped Jobs: their pipe is what keeps the job alive


class LaunchError(LfError):
    """A job that did not end well; `run` is its folder, `report` what the first failing rank said."""

    def __init__(self, run: Run, report: str) -> None:
        super().__init__(report)
        self.run = run
        self.report = report

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the rank's own traceback, not the launcher's."""
        return [self.report]


class Job:
    """A started job: the run it writes, and the supervisor that ends it."""

    def __init__(self, run: Run, supervisor: subprocess.Popen[bytes]) -> None:
        self.run = run
        self._supervisor = supervisor
        _running.add(self)

    def poll(self) -> str:
        """The run's state now: running, done, failed or stopped."""
        code = self._supervisor.poll()
        if code is None:
            return "running"
        _running.discard(self)
        if self._supervisor.stdin:
            self._supervisor.stdin.close()
        status = self.run.read("status.json")
        if status["state"] == "running":  # the supervisor could not say how it ended
            words = log_tail(self.run.path / "logs" / "supervisor.log")
            reason = f"the supervisor {ending(code)}" + (f": {words[-1]}" if code > 0 and words else "")
            with contextlib.suppress(LfError):  # on a full disk the old status stays, and its pid is gone
                self.run.set_status("failed" if code > 0 else "stopped", reason)
        return str(self.run.status["state"])

    def wait(self, watch: bool = False) -> Run:
        """The run when it is done, its line shown meanwhile on request; raises LaunchError if it ended otherwise.

        An interrupt ends the job before it is passed on.
        """
        try:
            if watch:
                follow(self.run, lambda: self.poll() != "running", screen())
            self._supervisor.wait()
            self.poll()
        except KeyboardInterrupt:
            self.stop(signal.SIGINT)
            print(f"stopped at step {last_step(self.run)}", flush=True)
            raise
        status = self.run.status
        if status["state"] != "done":
            report = status.get("report") or f"{self.run.id} {status['state']}: {status['reason']}."
            raise LaunchError(self.run, report)
        return self.run

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End the job and wait for the end of all its processes."""
        supervisor = processes.Member.of(self._supervisor.pid)
        if self._supervisor.poll() is None and supervisor:
            self._supervisor.send_signal(signum)
            try:
                self._supervisor.wait(STOP)
            except subprocess.TimeoutExpired:
                processes.end_tree(supervisor, set(), grace=0.0)
                self._supervisor.wait()
        self.poll()


def stop(run: Run) -> bool:
    """End a running job, whoever started it on this machine; whether there was one to end.

    This process's own is waited for; that of another is told to end, and does within seconds.
    """
    own = next((job for job in list(_running) if job.run.path == run.path), None)
    if own is not None:
        own.stop()
        return True
    status = run.status
    here = status.get("host", platform.node()) == platform.node()
    if status["state"] != "running" or not here or not _is_supervisor(status["pid"]):
        return False
    os.kill(status["pid"], signal.SIGTERM)
    return True


def _is_supervisor(pid: int) -> bool:
    """A job that is just starting bears the pid of its launcher, which must not be ended."""
    with contextlib.suppress(psutil.Error):
        return "lfhelpers.launch.supervisor" in psutil.Process(pid).cmdline()
    return False


def launch(job: Recipe, nproc: int = 1, *, hosts: Sequence[str] | None = None, resume: Run | str | None = None,
           watch: bool = True, port: int | None = None, module: str = "lfhelpers.train",
           args: list[str] | None = None) -> Run:
    """Run `job` on `nproc` ranks to its end and return its run; raises LaunchError with the first failing rank's words.

    Ranks run `python -m module RUN_FOLDER [--resume] *args`. Jupyter's Stop, or Ctrl-C, ends all of it within 5 s and
    raises KeyboardInterrupt.

    hosts: names of several hosts that share the folder of runs, each to have `nproc` ranks. What to run on each is
    printed, and kept in the run folder as hosts/commands.txt; where this machine is one of them its part is started.
    Where it is none, the run is returned at once, to be watched.
    """
    if hosts and several.here(hosts) is None:
        return written(job, nproc, hosts, resume=resume, port=port, module=module, args=args)
    return start(job, nproc, hosts=hosts, resume=resume, port=port, module=module, args=args).wait(watch)


def start(job: Recipe, nproc: int = 1, *, hosts: Sequence[str] | None = None, resume: Run | str | None = None,
          port: int | None = None, module: str = "lfhelpers.train", args: list[str] | None = None) -> Job:
    """Start `job` and return at once; it ends with this process and with Jupyter's Stop. LfError if it can't start.

    With `hosts` (see launch) this machine must be one of them.
    """
    node = _node(hosts) if hosts else None
    checks.check(job, nproc, port if not node else None)
    run, ranks = _prepared(job, nproc, len(hosts or [""]), resume, module, args)
    meet = [] if port is None else ["--port", str(port)]
    if hosts:
        places = _places(hosts, port or (several.PORT if node else checks.free_port()))
        _hand_out(run, places, nproc, ranks, node)
        meet = places[node or 0].options()
    command = [sys.executable, "-m", "lfhelpers.launch.supervisor", str(run.path), "--nproc", str(nproc), *meet, "--",
               *ranks]
    try:
        # Until the supervisor writes its own, this process stands for the job, so that the run never looks dead.
        run.set_status("running", "starting", pid=os.getpid())
        with (run.path / "logs" / "supervisor.log").open("wb") as log:
            return Job(run, _supervisor(command, log))
    except OSError as error:
        with contextlib.suppress(LfError):
            run.set_status("failed", f"not started: {error.strerror}")
        raise LfError(f"the job can't be started in {run.path}: {error.strerror}.") from error


def written(job: Recipe, nproc: int, hosts: Sequence[str], *, resume: Run | str | None = None, port: int | None = None,
            module: str = "lfhelpers.train", args: list[str] | None = None) -> Run:
    """A run for several hosts, none of it started: prints what to run on each."""
    several.check(hosts)
    run, ranks = _prepared(job, nproc, len(hosts), resume, module, args)
    run.set_status("stopped", f"not started yet: waits for {', '.join(hosts)}")
    _hand_out(run, _places(hosts, port or several.PORT), nproc, ranks, None)
    return run


def _node(hosts: Sequence[str]) -> int:
    """Which of the hosts this one is. Raises LfError where it is none."""
    several.check(hosts)
    if (node := several.here(hosts)) is None:
        raise LfError(f"this machine is none of the hosts {', '.join(hosts)}; start the job on one of them, or have "
                      "launch() print what to run on each.")
    return node


def _places(hosts: Sequence[str], port: int) -> list[Place]:
    start = secrets.token_hex(4)
    return [Place(tuple(hosts), node, port, start) for node in range(len(hosts))]


def _hand_out(run: Run, places: list[Place], nproc: int, ranks: list[str], started: int | None) -> None:
    """Print what to run on each host, and keep it in the run folder."""
    text = several.instructions(run, places, nproc, ranks, started)
    (run.path / "hosts").mkdir(exist_ok=True)
    runs.write_atomic(run.path / "hosts" / "commands.txt", f"{text}\n".encode())
    print(text, flush=True)


def _prepared(job: Recipe, nproc: int, hosts: int, resume: Run | str | None, module: str,
              args: list[str] | None) -> tuple[Run, list[str]]:
    """The run's folder, and what each rank runs: a module and its arguments."""
    known = resumed(resume, job) if resume is not None else None
    runs.make_root()  # before a dataset may be rendered for a run that then has no place
    if module == "lfhelpers.train":
        from lfhelpers.launch.prepare import prepare  # here: every rank imports this package before its death watch

        job = prepare(job, nproc, hosts)
    run = known or runs.create(job)
    again = [] if resume is None else ["--resume"]
    return run, [module, str(run.path), *again, *(args or [])]


def _supervisor(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The supervisor, in this process group, its stdin held by this process, its output in a file that can't break."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)


def resumed(resume: Run | str, job: Recipe) -> Run:
    """The run to go on with; raises LfError while it runs, or where `job` is not its recipe.

    A precision that either leaves to the machine counts as what it would be here.
    """
    run = runs.load(resume)
    if run.status["state"] == "running":
        raise LfError(f"{run.id} is still running (pid {run.status['pid']}); stop it before resuming it.")
    here = [formats.settled(each, hardware.expected(each.device)) for each in (run.recipe, job)]
    if changed := diff(*here):
        fields = ", ".join(f"{name} = {old} there, {new} here" for name, (old, new) in changed.items())
        raise LfError(f"{run.id} was started with another recipe ({fields}); resume it with its own, run.recipe.")
    return run
