"""Smoke or GPU: at which size the lessons run here, and why.

`smoke` shows every mechanism at a small size on the CPU; `gpu` measures at full size. The choice asks the driver
(NVML), not torch, because a notebook must not own a CUDA context: it would hold memory that the measured job needs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from lfhelpers.errors import LfError

PROFILES = ("smoke", "gpu")


@dataclass(frozen=True)
class Profile:
    """A profile's name, and the sentence that says why it was chosen."""

    name: str
    reason: str


def choose(asked: str | None = "auto") -> Profile:
    """The profile as asked, or what the machine can do. Raises LfError for an unknown one, or gpu without a GPU."""
    if asked not in (None, "auto", *PROFILES):
        raise LfError(f"profile '{asked}' does not exist; take auto, smoke or gpu.")
    if asked == "smoke":
        return Profile("smoke", "asked for")
    names, reason = usable_gpus()
    if names:
        return Profile("gpu", f"{'asked for; ' if asked == 'gpu' else ''}{len(names)} x {names[0]}")
    if asked == "gpu":
        raise LfError(f"profile 'gpu' needs a GPU, and {reason}; take smoke.")
    return Profile("smoke", reason)


def choose_profile(asked: str = "auto") -> str:
    """For a notebook: the profile's name; prints it with its reason."""
    profile = choose(asked)
    print(f"profile {profile.name}: {profile.reason}")
    return profile.name


def usable_gpus() -> tuple[list[str], str]:
    """Names of the GPUs that torch could use here, and why there are none. No CUDA context is made."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return [], "CUDA_VISIBLE_DEVICES hides all GPUs"
    if _torch_cuda() is None:
        return [], "this torch is built without CUDA"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"no NVIDIA driver answers ({error})"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        return [], f"the NVIDIA driver fails ({error})"
    finally:
        pynvml.nvmlShutdown()
    shown = len(names) if visible is None else min(len(names), len(visible.split(",")))
    return names[:shown], "" if shown else "the NVIDIA driver lists no GPU"


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers: versions and hardware, as plain strings and counts."""
    names, _ = usable_gpus()
    return {"python": platform.python_version(), "torch": importlib.metadata.version("torch"),
            "lfhelpers": importlib.metadata.version("lfhelpers"), "system": platform.platform(),
            "cpu_count": os.cpu_count(), "gpus": names}


def _torch_cuda() -> str | None:
    """The CUDA version that torch was built for, read from its version file: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    return runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda")
