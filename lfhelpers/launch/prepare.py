"""What must hold before ranks are started: the recipe's workload and data are there, and paths are absolute."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from lfhelpers.data import Manifest, choice, make_plan
from lfhelpers.data.locks import Locked
from lfhelpers.data.manifest import is_address
from lfhelpers.data.shards import write
from lfhelpers.errors import LfError
from lfhelpers.launch import own
from lfhelpers.measure import formats, hardware
from lfhelpers.recipe import Recipe
from lfhelpers.runs import root

DEFAULT_SAMPLES = 2048
DEFAULT_SHARD_MB = 32
FIND = "lfhelpers.workloads.base:find"
"""What makes a recipe's workload, for the process that measures engines."""


def prepare(job: Recipe, nproc: int, hosts: int = 1, choose: bool = True) -> Recipe:
    """The recipe with absolute paths, after cheap checks; says what each epoch reads, pads or drops on all ranks.

    The default dataset is rendered on first use, samples that a workload makes itself are packed, and the engine `auto`
    becomes the one that is the fastest here for `nproc` ranks. The precision `auto` becomes what the device has units
    for, unless ranks run on several hosts, of which this may be none: they settle it. With choose=False both stay, for
    a machine like those that the job will run on.

    Raises LfError for a size or base that does not exist, for a workload without data that breaks its contract, and for
    a folder that is missing or fails its manifest.
    """
    if job.workload.use == "vla":
        from lfhelpers.workloads.vla import sizes

        sizes.find(job.workload.size)
        if job.workload.base:  # the run's recipe says which one it was, also when the code has changed
            from lfhelpers.workloads.vla import pretrained  # with torch, which a launcher else needn't import

            job = job.with_(**{"workload.base": str(pretrained.find(job.workload.base))})
    if job.data.path is None and job.workload.use == "vla" and not _made():
        _make_default()
    given = job.data.path or (own.examine(job).data if own.is_own(job.workload.use) else None)
    place = given if given and is_address(given) else str(Path(given).absolute() if given else default_folder())
    manifest = Manifest.load(place, cache_gb=job.data.cache_gb)
    print(make_plan(job, manifest, nproc * hosts).describe(), flush=True)
    job = job.with_(**{"data.path": place, "workload.use": _located(job.workload.use)})
    if not choose:
        return job
    if hosts == 1:
        job = formats.settled(job, hardware.expected(job.device))
    return choice.decide(job, nproc, FIND)


def _located(use: str) -> str:
    """A workload of one's own by its file's absolute path. Raises LfError where there is no such file."""
    if not use.rpartition(":")[0].endswith(".py"):
        return use
    file, name = own.source(use)
    return f"{file.absolute()}:{name}"


def _made() -> bool:
    return (default_folder() / "manifest.json").exists()


def _make_default() -> None:
    """Render the default set, or wait for the process that does so already: two jobs may begin at once."""
    place = default_folder().with_name(f".{default_folder().name}.wanted")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = Locked(place, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise LfError(f"the default dataset can't be made in {default_folder()}: {error.strerror}; "
                      "give another place with LFHELPERS_RUNS.") from error
    with lock:
        if not lock.exclusive():
            print(f"another process renders the dataset into {default_folder()}; waiting for it", flush=True)
            lock.exclusive(wait=True)
        if not _made():
            _render_default()


def _render_default() -> None:
    """Through the command: a notebook, or a script without a main guard, can't spawn the writer processes."""
    print(f"no dataset yet: rendering {DEFAULT_SAMPLES} tabletop samples into {default_folder()}, once", flush=True)
    command = [sys.executable, "-m", "lfhelpers", "data", "make", "--samples", str(DEFAULT_SAMPLES), "--shard-mb",
               str(DEFAULT_SHARD_MB)]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        raise LfError(f"the default dataset can't be made in {default_folder()}; the reason stands above. "
                      "Give another folder of shards with data.path=FOLDER.")


def default_folder() -> Path:
    """Where the default tabletop set lies: beside the runs."""
    return root() / "data" / "tabletop"


def make_tabletop(out: Path | None, samples: int, *, shard_mb: float, jobs: int | None = None, seed: int = 0,
                  distractors: int | str = 3) -> Manifest:
    """Render tabletop scenes into shards; continues where an interrupted call stopped.

    distractors: their number, or the name of a task.
    """
    source = {"world": "tabletop", "seed": seed, "distractors": distractors}
    return write(out or default_folder(), functools.partial(_sample, seed, distractors), samples, shard_mb=shard_mb,
                 jobs=jobs or hardware.usable_cores(), seed=seed, source=source)


def _sample(seed: int, distractors: int | str, index: int) -> dict[str, bytes]:
    from lfhelpers.workloads.vla.tabletop.dataset import sample

    return sample(seed, index, distractors)
