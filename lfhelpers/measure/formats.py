"""Number formats that a device has units for, and what `precision.mode = "auto"` means on it.

A processor without bf16 instructions takes each bf16 product apart in software: a step of `tiny` on such a CPU was seen
to take six to ten times as long as in fp32. So `auto` is bf16 where there are units for it, and fp32 elsewhere.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lfhelpers.measure import hardware
from lfhelpers.recipe import PrecisionFields, Recipe

CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As Linux names the instructions, on x86 and on Arm."""
CAPABILITY = (8, 0)
"""GPUs have bf16 from this compute capability on."""


def has_bf16(kind: str) -> bool:
    """Whether the CPU, or each GPU that this process may use, has units for bf16. Makes no CUDA context."""
    if kind == "cuda":
        return all(gpu.capability >= CAPABILITY for gpu in hardware.visible_gpus())
    return bool(CPU_FLAGS & cpu_flags())


def mode(fields: PrecisionFields, kind: str) -> str:
    """The mode on a `cpu` or `cuda`: what the fields say, or for auto bf16 or fp32; weights in bf16 ask for bf16."""
    if fields.mode != "auto":
        return fields.mode
    return "bf16" if fields.weights == "bf16" or has_bf16(kind) else "fp32"


def settled(job: Recipe, kind: str) -> Recipe:
    """The recipe as it is trained on a `cpu` or `cuda`: with a mode in place of auto."""
    return job if job.precision.mode != "auto" else job.with_(**{"precision.mode": mode(job.precision, kind)})


@cache
def cpu_flags(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the processor can do, in Linux's words; empty where Linux doesn't say."""
    lines = (line.partition(":") for line in (file.read_text() if file.exists() else "").splitlines())
    told = (words for name, _, words in lines if name.strip() in ("flags", "Features"))
    return frozenset(word for words in told for word in words.split())
