"""What the supervisor starts: torchrun, or a rank alone.

torchrun starts ranks, lets them meet, and ends them together. A rank without peers needs nothing of that, and torchrun
takes two seconds to import torch, so it is started as itself, with the variables that torchrun would have given it.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lfhelpers import processes
from lfhelpers.launch import checks, network
from lfhelpers.launch.hosts import Place
from lfhelpers.runs import Run


def start(run: Run, nproc: int, port: int | None, module: list[str], place: Place | None = None,
          leave: Path | None = None) -> subprocess.Popen[bytes]:
    """torchrun, or the one rank, in a session of its own; `module` is a name and its arguments.

    Command and output go to logs/torchrun.log, on the hosts after the first to logs/torchrun-NODE.log, those of a rank
    alone to its own log.
    """
    name = f"torchrun-{place.node}" if place and place.node else "torchrun"
    logs = run.path / "logs"
    _forget([logs / name, logs / f"{name}.log"] if place else logs.glob("torchrun*"))
    near, reason = network.numa_options(nproc, run.recipe.device)
    command, given = ["-m", "lfhelpers.launch.rank", *module], _environment(run, nproc, place, leave)
    if nproc == 1 and place is None and not near:
        return _popen(command, logs / "rank-0.log", reason, given | _alone(logs / name, port), leave)
    meet = place.torchrun() if place else [
        *(["--standalone"] if port is None else ["--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={port}"]),
        "--local-addr=127.0.0.1"]
    command = ["-m", "torch.distributed.run", *meet, *near, f"--nproc-per-node={nproc}", f"--log-dir={logs / name}",
               *command]
    return _popen(command, logs / f"{name}.log", reason, given, leave)


def _forget(earlier: Iterable[Path]) -> None:
    """Remove what an earlier start of this run left: it would be taken for the words of this one."""
    for path in earlier:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _popen(words: list[str], log: Path, reason: str, environment: dict[str, str],
           leave: Path | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, *words]
    with log.open("ab") as out:
        out.write(f"$ {shlex.join(command)}\n{reason}\n".encode())
        out.flush()
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                start_new_session=True,
                                preexec_fn=functools.partial(_under, os.getpid(), leave is not None))


def _under(parent: int, ignore: bool) -> None:
    """In the new process before it starts: die with this program, and take no notice of USR1, as all below it."""
    processes.die_with_parent(parent)
    if ignore:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _alone(errors: Path, port: int | None) -> dict[str, str]:
    """torchrun's variables of a rank without peers; its error file lies where torchrun would have it."""
    file = errors / "alone" / "attempt_0" / "0" / "error.json"
    file.parent.mkdir(parents=True)
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port or checks.free_port()), "TORCHELASTIC_ERROR_FILE": str(file)}


def _environment(run: Run, nproc: int, place: Place | None, leave: Path | None) -> dict[str, str]:
    """What the ranks find in their environment; what the caller has set stays.

    Threads: a rank's share of the cores less those of its data workers, since torchrun would give each rank one only.
    They wait passively: spinning threads that share cores with workers made steps ten times as long (2 cores, seen).
    Connections: a GPU's streams share so many queues, 8 by default, in which one waits for the other's work. Behind a
    captured step the decoder's streams then waited for all of it (`small` on an H200: 52 % of the time instead of 0).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    data = run.recipe.data
    workers = 0 if data.loader == "synthetic" else cores if data.workers is None else data.workers
    return {"OMP_NUM_THREADS": str(max(1, cores // nproc - workers)), "OMP_WAIT_POLICY": "PASSIVE",
            "CUDA_DEVICE_MAX_CONNECTIONS": "32", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10",
            **(place.environment() if place else {}), **os.environ,
            "PYTHONUNBUFFERED": "1", **({processes.LEAVE: str(leave)} if leave else {}),
            processes.RUN: str(run.path), processes.SUPERVISOR: str(processes.Member.of(os.getpid()))}
