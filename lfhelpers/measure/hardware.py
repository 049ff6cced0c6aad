"""What this machine is: cores, memory, GPUs, versions, and which device a job gets.

Each answer comes with its reason, and what is not known is None and never a guess: an unknown GPU shows no MFU rather
than a wrong one. GPU facts come from NVML, which needs no CUDA context, so a notebook kernel or a data worker may ask.
torch is imported only inside the functions that need it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from lfhelpers import runs
from lfhelpers.errors import LfError

DALI_BUILDS = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
GIB = 2**30

_DATASHEET = "vendor's datasheet, dense"
# GPU's full name as NVML gives it: dense TFLOP/s in bf16, fp16, tf32, fp32, and where the figures come from.
# A laptop part, a slice (MIG) or a variant has another name, so it finds no row instead of its bigger brother's.
_PEAKS: dict[str, tuple[float | None, float | None, float | None, float | None, str]] = {
    r"B200": (2250, 2250, 1125, 75, f"HGX B200 {_DATASHEET}"),
    r"H200": (989, 989, 494, 67, f"H200 SXM {_DATASHEET}"),
    r"H200 NVL": (835, 835, 418, 60, f"H200 NVL {_DATASHEET}"),
    r"GH200 .*": (990, 990, 494, 67, f"GH200 {_DATASHEET}"),
    r"H100 80GB HBM3|H800": (989, 989, 494, 67, f"H100 SXM {_DATASHEET}; the H800 has the same rates"),
    r"H100 PCIe": (756, 756, 378, 51, f"H100 PCIe {_DATASHEET}"),
    r"H20": (148, 148, 74, 44, f"H20 {_DATASHEET}"),
    r"A[18]00[- ].*": (312, 312, 156, 19.5, f"A100 {_DATASHEET}; the A800 has the same rates"),
    r"L40S": (362, 362, 183, 91.6, f"L40S {_DATASHEET}"),
    r"L4": (121, 121, 60, 30.3, f"L4 {_DATASHEET}"),
    r"RTX A6000": (154.8, 154.8, 77.4, 38.7, "GA102 whitepaper, dense, fp32 accumulation"),
    r"GeForce RTX 3090": (71, 71, 35.6, 35.6, "GA102 whitepaper, dense, fp32 accumulation"),
    r"GeForce RTX 4090": (165, 165, 82.6, 82.6, "Ada whitepaper, dense, fp32 accumulation"),
    r"Tesla V100-SXM2.*": (None, 125, None, 15.7, f"V100 {_DATASHEET}"),
}
_DTYPES = ("bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML sees it: total memory in GiB, compute capability such as (9, 0)."""

    name: str
    memory_gib: float
    capability: tuple[int, int]


def peak_tflops(gpu_name: str, dtype: str) -> tuple[float | None, str]:
    """(dense peak in TFLOP/s, source) of a GPU by its NVML or torch name; (None, reason) where it isn't certain.

    dtype is bf16, fp16, tf32 or fp32, fp32 meaning true fp32 arithmetic (torch's default for matrix products).
    """
    short = gpu_name.removeprefix("NVIDIA ").strip()
    if " MIG " in short:
        return None, f"{gpu_name} is a slice of a GPU, whose peak is not published"
    row = next((row for pattern, row in _PEAKS.items() if re.fullmatch(pattern, short)), None)
    if row is None:
        return None, f"no peak is on record for '{gpu_name}'"
    *rates, source = row
    peak = dict(zip(_DTYPES, rates, strict=True)).get(dtype)
    return (float(peak), source) if peak is not None else (None, f"'{gpu_name}' has no peak on record for {dtype}")


def device(choice: str = "auto") -> tuple[str, str]:
    """(`cpu` or `cuda`, why) for a recipe's `device`; creates no CUDA context. LfError if `cuda` is asked in vain."""
    if choice == "cpu":
        return "cpu", "the recipe asks for device='cpu'"
    if choice not in ("auto", "cuda"):
        raise LfError(f"device = '{choice}' does not exist; take auto, cpu or cuda.")
    # Asked through NVML: the runtime's own answer would leave CUDA broken in processes that are forked later.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if torch.cuda.is_available():
        return "cuda", f"torch sees {torch.cuda.device_count()} CUDA device(s)"
    why = "torch sees no CUDA device" if torch.version.cuda else \
        f"torch sees no CUDA device: the build {torch.__version__} has no CUDA"
    if choice == "cuda":
        raise LfError(f"device = 'cuda' can't be had, {why}; take device='auto', or see what `lfhelpers doctor` says.")
    return "cpu", why


def expected(choice: str) -> str:
    """What `device` will answer, by NVML alone: for a launcher, which has no other need of torch and its seconds.

    A torch that can't use the GPU that is there isn't seen.
    """
    return "cpu" if choice == "cpu" or not visible_gpus() else "cuda"


def usable_cores() -> int:
    """Cores that this process may keep busy: CPU affinity and the control group's quota, rounded down, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, min(cores, int(quota))) if quota else cores


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), members: str | None = None) -> float | None:
    """Cores' worth of CPU time that control groups (v2, v1) allow, or None; `members` is /proc/self/cgroup's text."""
    quotas = []
    for folder in _groups("cpu", groups, members):
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            numbers = [number for file in files for number in _numbers(folder / file, 2)]
            if len(numbers) == 2 and min(numbers) > 0:
                quotas.append(numbers[0] / numbers[1])
    return min(quotas, default=None)


def memory_bytes(groups: Path = Path("/sys/fs/cgroup"), members: str | None = None) -> int:
    """Host memory in bytes that this process may use: the machine's, or less where a control group limits it."""
    limits = [psutil.virtual_memory().total]
    for folder in _groups("memory", groups, members):
        for file in ("memory.max", "memory.limit_in_bytes"):
            limits += map(int, _numbers(folder / file, 1))
    return min(limits)


@cache
def nvml() -> ModuleType | None:
    """NVML's module `pynvml`, initialised, or None where there is no NVIDIA driver; never raises."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing or broken driver shows itself in a dozen ways, and each means: no GPU facts
        return None
    return pynvml


def nvml_handle(index: int = 0) -> Any:
    """NVML's handle of torch's device `index`, CUDA_VISIBLE_DEVICES applied, or None.

    CUDA numbers GPUs fastest first and NVML by bus, so with unlike GPUs in one host set CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    module = nvml()
    if module is None:
        return None
    try:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        wanted = visible.split(",")[index].strip() if visible is not None else str(index)
        if wanted.isdigit():
            return module.nvmlDeviceGetHandleByIndex(int(wanted))
        return module.nvmlDeviceGetHandleByUUID(wanted)
    except Exception:  # no such device, or an error of NVML's own
        return None


def gpus() -> list[Gpu]:
    """The host's GPUs, all of them whatever CUDA_VISIBLE_DEVICES says; empty without a driver."""
    module = nvml()
    if module is None:
        return []
    try:
        return [_gpu(module.nvmlDeviceGetHandleByIndex(index)) for index in range(module.nvmlDeviceGetCount())]
    except Exception:  # a GPU that fell off the bus
        return []


def visible_gpus() -> list[Gpu]:
    """Those of the host's GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order."""
    handles = [nvml_handle(index) for index in range(len(gpus()))]
    return [_gpu(handle) for handle in handles if handle is not None]


def driver() -> tuple[str | None, tuple[int, int] | None]:
    """(the NVIDIA driver's version, the newest CUDA that it runs as (major, minor)); (None, None) without one."""
    module = nvml()
    if module is None:
        return None, None
    try:
        cuda = module.nvmlSystemGetCudaDriverVersion()
        return _text(module.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10)
    except Exception:  # as in gpus()
        return None, None


def version(package: str) -> str | None:
    """An installed distribution's version, or None; imports nothing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe() -> dict[str, Any]:
    """Hardware, versions, commit and time for a run's environment.json; names neither the host nor its user.

    `gpus` are those that this process may use; `gpus_host` counts all of the machine.
    """
    driver_version, driver_cuda = driver()
    return {
        "hardware": {"cpu": cpu_name(), "cores_physical": psutil.cpu_count(logical=False), "cores": os.cpu_count(),
                     "cores_usable": usable_cores(), "ram_gib": round(memory_bytes() / GIB, 1),
                     "gpus": [asdict(gpu) | {"capability": list(gpu.capability)} for gpu in visible_gpus()],
                     "gpus_host": len(gpus()), "driver": driver_version,
                     "driver_cuda": ".".join(map(str, driver_cuda)) if driver_cuda else None},
        "versions": versions(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "commit": commit(runs.project()),
        "time": runs.now(),
    }


def title(kind: str) -> str:
    """What a job on `cpu` or `cuda` runs on, in a few words such as `NVIDIA H200` or `AMD EPYC, 2 cores`."""
    module, handle = nvml(), nvml_handle() if kind == "cuda" else None
    if module is not None and handle is not None:
        return _text(module.nvmlDeviceGetName(handle))
    return f"{cpu_name()}, {usable_cores()} cores" if kind == "cpu" else "an unknown GPU"


def versions() -> dict[str, str | None]:
    """Versions of what decides a run's speed; None for what isn't installed or isn't in this build of torch."""
    import torch

    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    # torch.backends.cudnn.version() asks every GPU what it is, and a process that has used CUDA can't fork any more.
    cudnn = torch._C._cudnn.getVersionInt() if torch.backends.cudnn.is_available() else None
    return {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": str(cudnn) if cudnn else None,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
            "dali": next((f"{version(build)} ({build})" for build in DALI_BUILDS if version(build)), None),
            "numpy": version("numpy"), "lfhelpers": version("lfhelpers")}


def commit(checkout: Path) -> dict[str, Any] | None:
    """{"hash": 40 hex digits, "dirty": bool} of a git checkout, or None where it is none or git is missing.

    A copy without .git (in a container, on a lent machine) is told its commit by $LFHELPERS_COMMIT.
    """
    if told := os.environ.get("LFHELPERS_COMMIT"):
        return {"hash": told, "dirty": False}
    if not (checkout / ".git").exists():
        return None
    try:
        head, changes = (subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True,
                                        timeout=10, check=True).stdout.strip()
                         for words in (["rev-parse", "HEAD"], ["status", "--porcelain"]))
    except (OSError, subprocess.SubprocessError):
        return None
    return {"hash": head, "dirty": bool(changes)}


def cpu_name() -> str:
    """The CPU's model name."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _groups(controller: str, root: Path, members: str | None) -> Iterator[Path]:
    """Folders of this process's control groups that may limit `controller`, up to the root of each hierarchy."""
    listing = Path("/proc/self/cgroup")
    text = members if members is not None else listing.read_text() if listing.exists() else ""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        # A container sees the host's path but only its own part of the tree, so the root counts as well.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _numbers(path: Path, count: int) -> list[float]:
    """The first `count` numbers of a control group's file; empty where it is missing or says `max`."""
    try:
        return [float(word) for word in path.read_text().split()[:count]]
    except (OSError, ValueError):
        return []


def _gpu(handle: Any) -> Gpu:
    module = nvml()
    assert module is not None, "handles come from NVML"
    return Gpu(_text(module.nvmlDeviceGetName(handle)), round(module.nvmlDeviceGetMemoryInfo(handle).total / GIB, 1),
               tuple(module.nvmlDeviceGetCudaComputeCapability(handle)))


def _text(value: str | bytes) -> str:
    """NVML's older bindings answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value
