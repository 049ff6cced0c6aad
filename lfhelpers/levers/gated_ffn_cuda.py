"""The gated product in CUDA C++ (csrc/gated_ffn.cu): built once by torch's cpp_extension, kept beside compiled kernels.

The build runs in a process of its own, so its output, its environment and its failures stay there; the library is
renamed into place when it is whole and named after all that decides it, so a second process loads it and needs no
compiler. The price of C++: seconds of building, one GPU generation a build, and an operator that Inductor can't see
into. So the module says in one line why it can't be used, and whoever asked takes the next implementation.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lfhelpers.errors import LfError
from lfhelpers.levers import compile_cache

SOURCE = Path(__file__).parent / "csrc" / "gated_ffn.cu"
CAPABILITY = (9, 0)
TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"))
PARTS = ("bin/nvcc", "include/cuda_runtime.h")
FLAGS = ("-O3", "-gencode=arch=compute_90,code=sm_90")


@functools.cache
def obstacle(device: int) -> str | None:
    """Why the kernels can't be used on CUDA device number `device`; None once they are built and loaded."""
    if torch.version.cuda is None:
        return f"the build {torch.__version__} of torch has no CUDA"
    if not torch.cuda.is_available():
        return "there is no GPU"
    if (found := torch.cuda.get_device_capability(device)) != CAPABILITY:
        return f"they are built for sm_{CAPABILITY[0]}{CAPABILITY[1]}, and this GPU is sm_{found[0]}{found[1]}"
    return _loaded()


def product(packed: Tensor) -> Tensor:
    """silu(gate) * up of contiguous CUDA [rows, 2 * hidden], gate on the left: [rows, hidden] in the same dtype."""
    out: Tensor = torch.ops.lfhelpers_cuda.swiglu(packed)
    return out


def gradient(grad: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    """From the product's gradient [rows, hidden], contiguous, to that of `packed`; and the product itself again."""
    grad_packed, out = torch.ops.lfhelpers_cuda.swiglu_grad(grad, packed)
    return grad_packed, out


def library() -> Path:
    """The file that holds what SOURCE becomes with this torch; it may not exist yet."""
    made_of = (SOURCE.read_text(), " ".join(FLAGS), torch.__version__, str(torch.version.cuda))
    return compile_cache.folder() / f"gated_ffn-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"


def build() -> Path:
    """The library, built where it isn't there. Raises LfError with the compiler's own line where it can't be."""
    path = library()
    if path.exists():
        return path
    try:
        with alone(path), tempfile.TemporaryDirectory(dir=path.parent) as folder:
            if not path.exists():  # another process may have built it while this one waited
                print("ffn: building the CUDA kernels, once on this machine (about a minute)", flush=True)
                done = subprocess.run([sys.executable, "-m", "lfhelpers.levers.gated_ffn_cuda", folder],
                                      capture_output=True, text=True, env=toolkit() | os.environ)
                if done.returncode:
                    raise LfError(f"their build fails: {reason(done.stdout + done.stderr)}")
                next(Path(folder).glob("*.so")).rename(path)
    except OSError as error:
        raise LfError(f"their library can't be kept in {path.parent}: {error.strerror}") from error
    return path


def toolkit(places: Sequence[Path] = TOOLKITS) -> dict[str, str]:
    """{"CUDA_HOME": the first place with a compiler and its headers}, or {}, which leaves the search to torch.

    torch takes the folder above the first nvcc on the PATH, and that may be a script far from its toolkit.
    """
    version = Path(f"/usr/local/cuda-{torch.version.cuda}")
    found = [place for place in (version, *places) if all((place / part).exists() for part in PARTS)]
    return {"CUDA_HOME": str(found[0])} if found else {}


def reason(output: str) -> str:
    """The line of a failed build that says why."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror:|mismatches|Ninja is required|CUDA_HOME", line)]
    return (telling or lines or ["no words"])[0 if telling else -1]


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Inside, no other process of this host is inside for the same path; makes the path's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _loaded() -> str | None:
    try:
        torch.ops.load_library(str(build()))
    except (LfError, OSError) as error:  # OSError: a library that this torch or driver can't load
        return str(error).partition("\n")[0]
    torch.library.register_fake("lfhelpers_cuda::swiglu")(
        lambda packed: packed.new_empty(packed.shape[0], packed.shape[1] // 2))
    torch.library.register_fake("lfhelpers_cuda::swiglu_grad")(
        lambda grad, packed: (torch.empty_like(packed), torch.empty_like(grad)))
    return None


def main() -> None:
    """Build and load the library inside the folder that the command line names."""
    from torch.utils import cpp_extension

    cpp_extension.load("gated_ffn", [str(SOURCE)], extra_cuda_cflags=list(FLAGS), build_directory=sys.argv[1],
                       is_python_module=False)


if __name__ == "__main__":
    main()
