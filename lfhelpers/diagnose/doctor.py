"""What this machine has, what doesn't fit together, and the fix: one line a topic.

Only what would stop a job or make its figures wrong is marked as a fault; a machine without a GPU is none. Every check
stands alone, so a missing or broken part costs its own line and no other.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import disk, hardware

LEAST_TORCH = (2, 11)
LEAST_MEMORY_GIB = 8
LEAST_SHM_GIB = 1
"""16 workers with 2 batches each of 16 two-camera samples take 0.15 GiB; a container's default is 0.06 GiB in all."""
LEAST_OPEN_FILES = 1024
"""Each tensor in a worker's queue holds one open file."""
LEAST_DISK_MB_S = 100
"""Two cameras' JPEGs of 90 KB at 500 samples/s are 90 MB/s."""
DRIVER_OF_CUDA = {12: "525", 13: "580"}
SERVER_OF_WIDGETS = {"7": "1", "8": "3"}
"""Major versions of ipywidgets (in the kernel) and of jupyterlab_widgets (in the server) that understand each other."""

Answer = tuple[str, bool | None, str]


@dataclass(frozen=True)
class Line:
    """One topic: what was found, whether it fits (None: it doesn't matter here), and what to do where it doesn't."""

    topic: str
    value: str
    ok: bool | None
    fix: str = ""


def examine(data_folder: str | os.PathLike[str] | None = None, quick: bool = False) -> list[Line]:
    """Examine this machine; `quick` leaves out the disk, read in `data_folder` (none: where the runs lie) for 3 s."""
    checks = dict(CHECKS)
    if not quick:
        checks["disk"] = lambda: _disk(Path(data_folder) if data_folder is not None else _existing(runs.root()))
    return [_line(topic, check) for topic, check in checks.items()]


def render(lines: list[Line], console: Console | None = None) -> int:
    """Print the lines as a table and return the exit code: 1 if anything needs fixing, else 0."""
    console = console or Console()
    table = Table("", "topic", "found", "what to do", title="lfhelpers doctor", title_justify="left")
    for line in lines:
        mark = {True: "[green]ok[/]", False: "[red]FIX[/]", None: "-"}[line.ok]
        table.add_row(mark, line.topic, escape(line.value), escape(line.fix))
    faults = sum(line.ok is False for line in lines)
    console.print(table)
    console.print(f"{faults} to fix." if faults else "Everything fits together.")
    return int(faults > 0)


def _line(topic: str, check: Callable[[], Answer]) -> Line:
    try:
        return Line(topic, *check())
    except LfError as error:
        return Line(topic, "could not be measured", False, str(error))
    except Exception as error:  # whatever is broken on a stranger's machine must not hide the other lines
        return Line(topic, f"could not be read: {type(error).__name__}: {error}", False, "see the message")


def _python() -> Answer:
    fits = sys.version_info >= (3, 11) and platform.system() == "Linux"
    return (f"{platform.python_version()}, {platform.system()} {platform.machine()}", fits,
            "" if fits else "use Python 3.11 or newer on Linux, or under WSL2")


def _torch() -> Answer:
    torch = _module("torch")
    if torch is None:
        return "not installed", False, "pip install -e . in the project's folder"
    value = f"{torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA")
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < LEAST_TORCH:
        return value, False, "update torch to {}.{} or newer".format(*LEAST_TORCH)
    if hardware.gpus() and not torch.version.cuda:
        return value, False, "this machine has a GPU: install a CUDA build of torch (pytorch.org, Get Started)"
    return value, True, ""


def _driver() -> Answer:
    version, newest = hardware.driver()
    if version is None or newest is None:
        return "no NVIDIA driver", None, ""
    value = f"{version}, runs CUDA up to {newest[0]}.{newest[1]}"
    wanted = _cuda_major(_module("torch"))
    if wanted is not None and wanted > newest[0]:
        return value, False, _newer_driver(wanted) + f", or install torch built for CUDA {newest[0]}"
    return value, True, ""


def _gpus() -> Answer:
    found, torch = hardware.gpus(), _module("torch")
    if not found:
        return "none: lessons show each mechanism at a small size on the CPU, beside recorded GPU results", True, ""
    value = ", ".join(f"{gpu.name} ({gpu.memory_gib:.0f} GiB)" for gpu in found)
    if _cuda_major(torch) is not None and not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        fix = "see driver and torch" if hidden is None else f"unset CUDA_VISIBLE_DEVICES='{hidden}', which hides them"
        return f"{value}, but torch can't use them", False, fix
    return value, True, ""


def _capability() -> Answer:
    found, torch = hardware.gpus(), _module("torch")
    if not found or _cuda_major(torch) is None:
        return "matters only with a GPU", None, ""
    built = torch.cuda.get_arch_list()
    missing = sorted({"sm_{}{}".format(*gpu.capability) for gpu in found if not _runs(built, gpu.capability)})
    fix = f"it lacks {', '.join(missing)}: install a build of torch for this GPU" if missing else ""
    return f"torch is built for {' '.join(built)}", not missing, fix


def _nccl() -> Answer:
    torch = _module("torch")
    if _cuda_major(torch) is None:
        return "not in this build of torch: ranks on the CPU talk through gloo", None, ""
    if not torch.distributed.is_nccl_available():
        return "missing", False, "install the official build of torch: GPUs can't talk to each other without NCCL"
    return ".".join(map(str, torch.cuda.nccl.version())), True, ""


def _dali() -> Answer:
    builds = [build for build in hardware.DALI_BUILDS if hardware.version(build)]
    if not builds:
        wheel = platform.system() == "Linux" and platform.machine() == "x86_64"
        return "not installed", False if wheel else None, "pip install nvidia-dali-cuda120" if wheel else ""
    if len(builds) > 1:
        return " and ".join(builds), False, f"both write one folder: pip uninstall {' '.join(builds)}, then install one"
    cuda, (_, newest) = int(builds[0][-3:-1]), hardware.driver()
    value = f"{hardware.version(builds[0])} for CUDA {cuda}" + ("" if newest else ", CPU backend only")
    if _module("nvidia.dali") is None:
        return value, False, f"it can't be imported: pip install --force-reinstall {builds[0]}"
    if newest and newest[0] < cuda:
        return value, False, _newer_driver(cuda)
    return value, True, ""


def _jupyterlab() -> Answer:
    value, ok, fix = _part("jupyterlab")
    started = shutil.which("jupyter-lab")
    if ok and started and Path(started).parent != Path(sys.executable).parent:
        return f"{value}; PATH leads to that of another environment", None, "start it by `python -m jupyterlab`"
    return value, ok, fix


def _widgets() -> Answer:
    kernel, server = hardware.version("ipywidgets"), hardware.version("jupyterlab_widgets")
    value = f"kernel: ipywidgets {kernel or 'missing'}, server: jupyterlab_widgets {server or 'missing'}"
    fits = kernel and server and SERVER_OF_WIDGETS.get(kernel.split(".")[0]) == server.split(".")[0]
    return value, bool(fits), "" if fits else "pip install -U ipywidgets jupyterlab_widgets, both in this environment"


def _part(package: str) -> Answer:
    found = hardware.version(package)
    return (found, True, "") if found else ("not installed", False, f"pip install {package}")


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
        return f"no {name}", False, "apt-get install g++, or conda install gxx: compile.scope='blocks' needs it"
    if hardware.gpus() and not triton:
        return f"{name}, no triton", False, "pip install triton: torch.compile needs it on a GPU"
    shown = subprocess.run([name, "-dumpfullversion"], capture_output=True, text=True, timeout=10).stdout.strip()
    return f"{name} {shown}" + (f", triton {triton}" if triton else ""), True, ""


def _torchrun() -> Answer:
    torch = _module("torch")
    fits = torch is not None and importlib.util.find_spec("torch.distributed.run") is not None \
        and torch.distributed.is_gloo_available()
    return ("importable, with gloo", True, "") if fits else ("missing", False, "install the official build of torch")


def _disk(folder: Path) -> Answer:
    speed = disk.read_speed(folder)
    value = (f"{speed.sequential_mb_s:,.0f} MB/s sequential; {speed.random_mb_s:,.0f} MB/s in {speed.random_iops:,.0f} "
             f"random reads/s of {disk.SMALL // 1024} KiB ({speed.filesystem}, page cache {speed.cache})")
    fits = speed.sequential_mb_s >= LEAST_DISK_MB_S
    return value, fits, "" if fits else "keep the shards on a faster disk, best one in this machine: data.path"


def _module(name: str) -> Any:
    """The module, or None where it can't be imported, for whatever reason."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # OSError: a shared library is missing
        return None


def _cuda_major(torch: Any) -> int | None:
    """The major version of the CUDA that torch was built for; None without torch or CUDA."""
    return int(torch.version.cuda.split(".")[0]) if torch is not None and torch.version.cuda else None


def _runs(built: list[str], capability: tuple[int, int]) -> bool:
    """Whether code for one of `built` runs on a GPU: sm_XY on the same major and a minor from Y on, PTX on any newer.

    Names with a letter (sm_90a) run on exactly that capability. CUDA C++ programming guide, 'Compute capabilities'.
    """
    for kind, digits, letter in re.findall(r"(sm|compute)_(\d+)([a-z]?)", " ".join(built)):
        arch = (int(digits[:-1]), int(digits[-1]))
        newer = arch <= capability and (kind == "compute" or arch[0] == capability[0])
        if arch == capability or (newer and not letter):
            return True
    return False


def _newer_driver(cuda: int) -> str:
    return f"CUDA {cuda} needs a newer driver: update it to {DRIVER_OF_CUDA.get(cuda, 'the newest')} or later"


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


CHECKS: dict[str, Callable[[], Answer]] = {
    "python": _python, "torch": _torch, "driver": _driver, "GPUs": _gpus, "GPU architecture": _capability,
    "NCCL": _nccl, "DALI": _dali, "JupyterLab": _jupyterlab, "ipykernel": lambda: _part("ipykernel"),
    "ipywidgets": _widgets, "papermill": lambda: _part("papermill"), "cores": _cores, "memory": _memory,
    "/dev/shm": _shm, "open files": _open_files, "compiler": _compiler, "torchrun": _torchrun,
}
