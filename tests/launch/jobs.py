"""What is left of a job, and waiting for things to happen."""

import subprocess
import time

import psutil

from lfhelpers.processes import RUN, Member
from lfhelpers.runs import Run


def belonging(run: Run) -> set[int]:
    """The pids of a run's living processes, told by their environment and so also when their parents are gone."""
    found = {run.read("status.json")["pid"]} & set(psutil.pids())
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN) == str(run.path):
                found.add(process.pid)
        except psutil.Error:
            continue
    return {pid for pid in found if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE}


def supervisor_of(run: Run) -> Member:
    """The process that ends all others of the run; until it has written its own pid, its launcher's stands there."""
    until(lambda: "nproc" in run.status, run)
    return Member.of(run.status["pid"])


def left_after(run: Run, supervisor: Member | None) -> tuple[set[int], float]:
    """The run's processes that its supervisor has left behind at its own end; and the seconds until that end.

    supervisor: None where it was killed, and the system ends the others one by one: then until none is left.
    """
    began = time.monotonic()
    until(lambda: not (supervisor.alive if supervisor else belonging(run)))
    return belonging(run), time.monotonic() - began


def until(condition, *alive: subprocess.Popen | Run):
    """The first true value of condition(); fails at once when one of `alive` has ended without it.

    How long it takes depends on what else the machine does, so only pytest's own time limit ends it otherwise.
    """
    while True:
        ended = [words for one in alive if (words := end_of(one))]  # before the look, which then sees all it has done
        if value := condition():
            return value
        assert not ended, ended
        time.sleep(0.05)


def end_of(one: subprocess.Popen | Run) -> str:
    """How a process or a run has ended; empty while it goes on."""
    if isinstance(one, subprocess.Popen):
        return "" if one.poll() is None else f"{one.args} exited with {one.returncode}"
    status = one.status if one.read("status.json") else {"state": "running"}
    return "" if status["state"] == "running" else f"{one.id} {status['state']}: {status['reason']}"


def working(run: Run, ranks: int = 2) -> bool:
    """Whether every rank has said in its log that it trains."""
    logs = [run.path / "logs" / f"rank-{rank}.log" for rank in range(ranks)]
    return all(log.exists() and "step 3 " in log.read_text() for log in logs)
