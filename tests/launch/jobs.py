"""What is left of a job, and waiting for things to happen."""

import time

import psutil

from lfhelpers.processes import RUN
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


def left_after(run: Run, seconds: float) -> tuple[set[int], float]:
    """The run's processes that still live after `seconds`, as soon as there are none; and the seconds that it took."""
    began = time.monotonic()
    while (left := belonging(run)) and time.monotonic() - began < seconds:
        time.sleep(0.05)
    return left, time.monotonic() - began


def until(condition, seconds: float = 60.0):
    """The first true value of condition()."""
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - began < seconds, f"nothing came within {seconds} s"
        time.sleep(0.05)
    return value


def working(run: Run, ranks: int = 2) -> bool:
    """Whether every rank has said in its log that it trains."""
    logs = [run.path / "logs" / f"rank-{rank}.log" for rank in range(ranks)]
    return all(log.exists() and "step 3 " in log.read_text() for log in logs)
