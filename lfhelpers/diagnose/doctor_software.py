"""The doctor's checks of what is installed: Python, torch, driver and GPUs, DALI, the notebooks' parts."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lfhelpers.launch import network
from lfhelpers.measure import hardware

Answer = tuple[str, bool | None, str]
"""What was found, whether it fits (None: it doesn't matter here), and the fix where it doesn't."""
LEAST_TORCH = (2, 11)
DRIVER_OF_CUDA = {12: "525", 13: "580"}
SERVER_OF_WIDGETS = {"7": "1", "8": "3"}
"""Major versions of ipywidgets (in the kernel) and of jupyterlab_widgets (in the server) that understand each other."""


def _python() -> Answer:
    fits = sys.version_info >= (3, 11) and platform.system() == "Linux"
    return (f"{platform.python_version()}, {platform.system()} {platform.machine()}", fits,
            "" if fits else "use Python 3.11 or newer on Linux, or under WSL2")


def _torch() -> Answer:
    torch = importable("torch")
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
    wanted = _cuda_major(importable("torch"))
    if wanted is not None and wanted > newest[0]:
        return value, False, _newer_driver(wanted) + f", or install torch built for CUDA {newest[0]}"
    return value, True, ""


def _gpus() -> Answer:
    found, torch = hardware.gpus(), importable("torch")
    if not found:
        return "none: lessons show each mechanism at a small size on the CPU, beside recorded GPU results", True, ""
    value = ", ".join(f"{gpu.name} ({gpu.memory_gib:.0f} GiB)" for gpu in found)
    if _cuda_major(torch) is not None and not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        fix = "see driver and torch" if hidden is None else f"unset CUDA_VISIBLE_DEVICES='{hidden}', which hides them"
        return f"{value}, but torch can't use them", False, fix
    return value, True, ""


def _capability() -> Answer:
    found, torch = hardware.gpus(), importable("torch")
    if not found or _cuda_major(torch) is None:
        return "matters only with a GPU", None, ""
    built = torch.cuda.get_arch_list()
    missing = sorted({"sm_{}{}".format(*gpu.capability) for gpu in found if not _runs(built, gpu.capability)})
    fix = f"it lacks {', '.join(missing)}: install a build of torch for this GPU" if missing else ""
    return f"torch is built for {' '.join(built)}", not missing, fix


def _nccl() -> Answer:
    torch = importable("torch")
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
    if importable("nvidia.dali") is None:
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


def importable(name: str) -> Any:
    """The module, or None where it can't be imported, for whatever reason."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # OSError: a shared library is missing
        return None


CHECKS: dict[str, Callable[[], Answer]] = {
    "python": _python, "torch": _torch, "driver": _driver, "GPUs": _gpus, "GPU architecture": _capability,
    "NCCL": _nccl, "NCCL settings": network.verdict, "DALI": _dali, "JupyterLab": _jupyterlab,
    "ipykernel": lambda: _part("ipykernel"), "ipywidgets": _widgets, "papermill": lambda: _part("papermill"),
}
