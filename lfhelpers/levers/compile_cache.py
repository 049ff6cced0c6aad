"""Compiled kernels kept across runs: one file for each kind of run, loaded before the first compilation.

Inductor keeps what it compiles in a folder of the host's (TORCHINDUCTOR_CACHE_DIR, by default under /tmp), which goes
with the container. The file here is torch's portable form of the same (torch.compiler.save_cache_artifacts); it lies
in the user's cache folder and fills Inductor's before the run. Its name is a hash of what decides the compiled code:
sources, versions, hardware and the recipe's fields. Inductor checks every graph again by its content, so a key too wide
or too narrow costs time and never correctness. Compiled code names its GPU by number, so each GPU has a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lfhelpers import runs
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe

HEADER = b"lfhelpers compile cache 1"
SHAPING = ("workload", "precision", "compile", "frozen", "activations")
"""Sections of a recipe that change shapes and kernels."""
KEPT = 16
"""Files that stay; the longest unused ones go."""


def folder() -> Path:
    """Where the files lie: `compile` in $LFHELPERS_CACHE, or in `lfhelpers` of the user's cache folder."""
    return runs.cache() / "compile"


def key(job: Recipe, device: torch.device) -> dict[str, Any]:
    """What decides the compiled code: sources, versions, hardware, and the fields that change shapes and kernels."""
    return {
        "code": code_hash(job.workload.use), "torch": torch.__version__, "cuda": torch.version.cuda,
        "triton": hardware.version("triton"), "python": platform.python_version(), "device": _hardware(device),
        "recipe": {"micro": job.batch.micro, **{name: getattr(job, name).model_dump(mode="json") for name in SHAPING}},
    }


def code_hash(use: str) -> str:
    """sha256 over the sources of the package's workloads and levers, and of the file that `workload.use` names."""
    package = Path(__file__).resolve().parents[1]
    files = [path for part in ("workloads", "levers") for path in sorted((package / part).rglob("*.py"))]
    location = use.rpartition(":")[0]
    if location.endswith(".py"):
        files.append(Path(location))
    elif location:
        spec = importlib.util.find_spec(location)
        files += [Path(spec.origin)] if spec and spec.origin else []
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def file_of(made_for: dict[str, Any]) -> Path:
    """The file of a key."""
    return folder() / f"{hashlib.sha256(_text(made_for)).hexdigest()[:24]}.bin"


def load(made_for: dict[str, Any]) -> tuple[bool, str | None]:
    """(whether the key's file was loaded, why it was left alone although it is there)."""
    path = file_of(made_for)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False, None
    except OSError as error:
        return False, f"the compile cache {path} can't be read ({error.strerror}), so everything is compiled anew."
    header, _, rest = content.partition(b"\n")
    text, _, rest = rest.partition(b"\n")
    digest, _, data = rest.partition(b"\n")
    if header != HEADER or hashlib.sha256(data).hexdigest().encode() != digest:
        return False, f"the compile cache {path} is damaged and is not used; this run writes it anew."
    if text != _text(made_for):
        return False, f"the compile cache {path} was made for other code, versions or hardware and is not used."
    if torch.compiler.load_cache_artifacts(data) is None:
        return False, f"the compile cache {path} was not understood by torch {torch.__version__} and is not used."
    with contextlib.suppress(OSError):
        os.utime(path)
    return True, None


def save(made_for: dict[str, Any]) -> str | None:
    """Write what this process has compiled or found compiled, in one step; says why it couldn't, where it couldn't."""
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        return None
    data, path = artifacts[0], file_of(made_for)
    lines = (HEADER, _text(made_for), hashlib.sha256(data).hexdigest().encode(), data)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        runs.write_atomic(path, b"\n".join(lines))
        others = [file for file in path.parent.glob("*.bin") if file != path]
        for old in sorted(others, key=lambda file: -file.stat().st_mtime_ns)[KEPT - 1:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        return (f"the compile cache can't be kept in {path.parent}: {error.strerror}; give another place with "
                "LFHELPERS_CACHE, or set compile.cache=false.")
    return None


@contextlib.contextmanager
def nothing_kept() -> Iterator[None]:
    """Inductor and Triton begin with empty folders, which go when the block ends: a truly cold compilation."""
    from torch._inductor.utils import clear_caches

    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="lfhelpers-compile-", ignore_cleanup_errors=True) as place:
        os.environ |= {names[0]: place, names[1]: f"{place}/triton"}
        clear_caches()
        try:
            yield
        finally:
            clear_caches()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return (f"{torch.cuda.get_device_name(device)}, sm {torch.cuda.get_device_capability(device)}, "
                f"cuda:{device.index or 0}")
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _text(made_for: dict[str, Any]) -> bytes:
    return json.dumps(made_for, sort_keys=True).encode()
