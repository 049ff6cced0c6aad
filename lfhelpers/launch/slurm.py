"""Jobs through Slurm: an sbatch script that survives time limits and requeues, and what Slurm says of a job.

The script starts one supervisor a host through srun, each around its torchrun (hosts.py). 120 s before the time limit
Slurm sends USR1 to the batch script alone (`--signal=B:USR1@120`), which passes it on; ranks then write a checkpoint
and leave, and the script has the job queued again. A job that Slurm itself requeues (preemption, a failed node) starts
the same script: whatever has a checkpoint is continued from the newest. Every time limit and every lost node then costs
a start and, at most, the steps since the last checkpoint.

`python -m lfhelpers.launch.slurm --nproc N RUN_FOLDER MODULE ARGS...` is what srun starts on each host.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lfhelpers import processes, runs
from lfhelpers.errors import LfError
from lfhelpers.launch import supervisor
from lfhelpers.launch.hosts import Place
from lfhelpers.launch.watch import follow, screen, silent
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run

QUEUED = "waits in Slurm's queue"
NOTICE = 120  # seconds before the time limit at which ranks are asked to leave
PORTS = range(20000, 32000)
LOOK = 2.0  # seconds between questions to Slurm, which serves everyone
ENDED = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL",
         "DEADLINE"}


@dataclass(frozen=True)
class Request:
    """What to ask of Slurm: hosts, ranks on each, a time limit as sbatch takes it, and further options of sbatch.

    gpus: one GPU a rank is asked for; off for jobs on CPUs. cpus: cores a host; none given: what the cluster's settings
    give, which without a rule of so many cores a GPU is a single one.
    """

    nodes: int = 1
    per_node: int = 1
    time: str = "1:00:00"
    gpus: bool = True
    cpus: int | None = None
    requeue: bool = True
    options: tuple[str, ...] = ()


def submit(job: Recipe, request: Request, *, resume: Run | str | None = None, module: str = "lfhelpers.train",
           args: Sequence[str] = ()) -> Run:
    """Write the script of a new run, or of one to be continued, submit it, and return the run; LfError if refused.

    slurm.json in the run folder has Slurm's number of the job.
    """
    from lfhelpers.launch import resumed

    run = resumed(resume, job) if resume is not None else None
    runs.make_root()
    if module == "lfhelpers.train":
        from lfhelpers.launch.prepare import prepare

        job = prepare(job, request.per_node, request.nodes, choose=False)
    run = run or runs.create(job)
    path = run.path / "slurm.sh"
    runs.write_atomic(path, script(run, request, module, args).encode())
    run.set_status("stopped", QUEUED)  # before the job can start, which writes its own
    try:
        number = int(_asked(["sbatch", "--parsable", *request.options, str(path)]).split(";")[0])
    except LfError as error:
        run.set_status("stopped", str(error))
        raise
    run.write("slurm.json", {"job": number})
    return run


def script(run: Run, request: Request, module: str = "lfhelpers.train", args: Sequence[str] = ()) -> str:
    """The sbatch script of a run: what it asks for, how it starts, continues, and passes signals on."""
    cpus = [f"--cpus-per-task={request.cpus}"] if request.cpus else []  # srun has to be told again
    gpus = [f"--gpus-per-node={request.per_node}"] if request.gpus else []
    own = ["-m", "lfhelpers.launch.slurm", "--nproc", str(request.per_node)]
    # Slurm ends a script that it queues again; one that ended by itself could still be counted as failed.
    again = ['  scontrol requeue "$SLURM_JOB_ID" && sleep 60'] if request.requeue else ["  echo 'left, not requeued'"]
    return "\n".join([
        "#!/bin/bash",
        f"#SBATCH --job-name={run.recipe.name}",
        f"#SBATCH --nodes={request.nodes}",
        "#SBATCH --ntasks-per-node=1",  # one supervisor a host; torchrun makes the ranks
        *(f"#SBATCH {option}" for option in [*gpus, *cpus]),
        f"#SBATCH --time={request.time}",
        f"#SBATCH --{'' if request.requeue else 'no-'}requeue",
        f"#SBATCH --signal=B:USR1@{NOTICE}",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={run.path / 'logs' / 'slurm.log'}",
        f"#SBATCH --chdir={Path.cwd()}",
        "",
        shlex.join([sys.executable, *own, "--choose", str(run.path)]) + " || exit",
        shlex.join(["srun", "--ntasks-per-node=1", *cpus, sys.executable, *own, str(run.path), module, *args]) + " &",
        "ranks=$!",
        "trap 'kill -USR1 $ranks' USR1",
        "while kill -0 $ranks 2>/dev/null; do wait $ranks; done  # a signal ends a wait, too",
        "wait $ranks; code=$?",
        f"if [ $code -eq {processes.LEFT} ]; then",
        *again,
        "fi",
        "exit $code",
        ""])


def wait(run: Run, watch: bool = False) -> Run:
    """Wait until Slurm has done with the run's job, its line shown meanwhile on request; returns the run.

    A job that ended without a word, because it was cancelled in the queue or killed, is written down as stopped.
    """
    number = job_of(run)
    follow(run, lambda: state(number) in ENDED, screen() if watch else silent, every=LOOK)
    if run.read("status.json")["state"] == "running" or run.status["reason"] == QUEUED:
        run.set_status("stopped", f"Slurm job {number} ended: {state(number).lower()}")
    return run


def job_of(run: Run) -> int:
    """Slurm's number of the job that runs the run. Raises LfError where there is none."""
    known = run.read("slurm.json")
    if known is None:
        raise LfError(f"run {run.id} was not submitted to Slurm; `lfhelpers watch` follows it.")
    return int(known["job"])


def state(number: int) -> str:
    """Slurm's word for the state of a job, such as RUNNING; COMPLETED for one that it has forgotten."""
    try:
        found = re.search(r"JobState=(\w+)", _asked(["scontrol", "show", "job", "--oneliner", str(number)]))
    except LfError as error:
        if "Invalid job id" not in str(error):
            raise
        return "COMPLETED"
    return found[1] if found else "UNKNOWN"


def main(argv: list[str] | None = None) -> int:
    """One host's part of a job: the supervisor, with what Slurm says of the other hosts; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m lfhelpers.launch.slurm")
    parser.add_argument("--nproc", type=int, default=1, help="ranks on this host")
    parser.add_argument("--choose", action="store_true", help="only decide what the recipe leaves open")
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("module", nargs="?", default="lfhelpers.train", help="what each rank runs")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the module's arguments")
    options = parser.parse_args(argv)
    run = Run(options.run.absolute())
    if options.choose:
        return _choose(run, options.nproc)
    place = place_of(os.environ)
    again = ["--resume"] if any((run.path / "checkpoints").glob("step-*")) else []
    return supervisor.main([str(run.path), "--nproc", str(options.nproc), *place.options(), "--detached", "--limit",
                            "--", options.module, str(run.path), *again, *options.args])


def place_of(environment: Mapping[str, str]) -> Place:
    """Where this host stands in its Slurm job, from the variables that Slurm sets for each task."""
    listed = environment["SLURM_JOB_NODELIST"]
    hosts = _asked(["scontrol", "show", "hostnames", listed]).split() if "[" in listed else listed.split(",")
    number, restarts = int(environment["SLURM_JOB_ID"]), environment.get("SLURM_RESTART_COUNT", "0")
    port = None if len(hosts) == 1 else PORTS[number % len(PORTS)]
    return Place(tuple(hosts), int(environment["SLURM_NODEID"]), port, f"slurm-{number}-{restarts}")


def _choose(run: Run, nproc: int) -> int:
    """On the first host, before its ranks: the engine that is the fastest there, where the recipe says auto."""
    job = run.recipe
    if job.data.loader == "auto":
        from lfhelpers.data import choice
        from lfhelpers.launch.prepare import FIND

        runs.write_atomic(run.path / "recipe.toml", choice.decide(job, nproc, FIND).to_toml().encode())
    return 0


def _asked(command: Sequence[str]) -> str:
    """What a program of Slurm's answers. Raises LfError where it is missing or refuses."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    except FileNotFoundError:
        raise LfError(f"{command[0]} is not here: run this where Slurm's commands are installed.") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip() or f"{command[0]} exited with {error.returncode}"
        raise LfError(f"Slurm refused: {said}") from error


if __name__ == "__main__":
    sys.exit(main())
