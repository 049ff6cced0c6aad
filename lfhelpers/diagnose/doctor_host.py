"""The doctor's checks of the host: cores, memory, limits, compilers and the disk."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from lfhelpers.diagnose.doctor_software import Answer, importable
from lfhelpers.measure import disk, hardware

LEAST_MEMORY_GIB = 8
LEAST_SHM_GIB = 1
"""16 workers with 2 batches each of 16 two-camera samples take 0.15 GiB; a container's default is 0.06 GiB in all."""
LEAST_OPEN_FILES = 1024
"""Each tensor in a worker's queue holds one open file."""
LEAST_DISK_MB_S = 100
"""Two cameras' JPEGs of 90 KB at 500 samples/s are 90 MB/s."""


def _cores() -> Answer:
    usable = hardware.usable_cores()
    value = f"{usable} usable of {os.cpu_count()} ({psutil.cpu_count(logical=False)} physical), {hardware.cpu_name()}"
    fix = "give the job 2 cores or more: with one, data workers and training take turns"
    return value, usable > 1, "" if usable > 1 else fix


def _memory() -> Answer:
    total = hardware.memory_bytes() / hardware.GIB
    value = f"{total:.1f} GiB, {psutil.virtual_memory().available / hardware.GIB:.1f} GiB available on the host"
    fits = total >= LEAST_MEMORY_GIB
    fix = f"give the job {LEAST_MEMORY_GIB} GiB or more, or lower data.workers and batch.micro"
    return value, fits, "" if fits else fix


def _shm() -> Answer:
    if not Path("/dev/shm").is_dir():
        return "none on this system", None, ""
    usage = psutil.disk_usage("/dev/shm")
    fits = usage.free >= LEAST_SHM_GIB * hardware.GIB
    fix = "workers pass batches here and would die of a bus error: start the container with --shm-size=8g, or set " \
          "data.workers=0"
    return f"{usage.free / hardware.GIB:.2f} GiB free of {usage.total / hardware.GIB:.2f}", fits, "" if fits else fix


def _open_files() -> Answer:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_OPEN_FILES:
        return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} a process", True, ""
    return f"{soft} a process", False, f"ulimit -n {LEAST_OPEN_FILES} (the hard limit is {hard})"


def _compiler() -> Answer:
    name = os.environ.get("CXX", "g++")  # as torch.compile looks it up
    triton = hardware.version("triton")
    if shutil.which(name) is None:
        return f"no {name}", False, "apt-get install g++, or conda install gxx: without it blocks are not compiled"
    if hardware.gpus() and not triton:
        return f"{name}, no triton", False, "pip install triton: torch.compile needs it on a GPU"
    shown = subprocess.run([name, "-dumpfullversion"], capture_output=True, text=True, timeout=10).stdout.strip()
    return f"{name} {shown}" + (f", triton {triton}" if triton else ""), True, ""


def _decoding() -> Answer:
    from lfhelpers.data import resize

    if importable("simplejpeg") is None:
        return "by Pillow alone", False, "pip install simplejpeg: the engine `threads` decodes faster by libjpeg-turbo"
    if resize.compiled() is None:
        return "libjpeg-turbo, resized by Pillow", None, "with a C compiler named cc the resize is 3 times as fast"
    return "libjpeg-turbo, with the resize compiled for this CPU", True, ""


def _torchrun() -> Answer:
    torch = importable("torch")
    fits = torch is not None and importlib.util.find_spec("torch.distributed.run") is not None \
        and torch.distributed.is_gloo_available()
    return ("importable, with gloo", True, "") if fits else ("missing", False, "install the official build of torch")


def read_disk(folder: Path) -> Answer:
    speed = disk.read_speed(folder)
    value = (f"{speed.sequential_mb_s:,.0f} MB/s sequential; {speed.random_mb_s:,.0f} MB/s in {speed.random_iops:,.0f} "
             f"random reads/s of {disk.SMALL // 1024} KiB ({speed.filesystem}, page cache {speed.cache})")
    fits = speed.sequential_mb_s >= LEAST_DISK_MB_S
    return value, fits, "" if fits else "keep the shards on a faster disk, best one in this machine: data.path"


CHECKS: dict[str, Callable[[], Answer]] = {
    "cores": _cores, "memory": _memory, "/dev/shm": _shm, "open files": _open_files, "compiler": _compiler,
    "decoding": _decoding, "torchrun": _torchrun,
}
