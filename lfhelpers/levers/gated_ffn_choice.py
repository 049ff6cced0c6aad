"""`compile.ffn="auto"`: which implementation of the gated FFN is the fastest for a shape here, measured once.

No rule decides it: the kernels move the same bytes, so it hangs on the shape, the releases of torch and Triton, and the
GPU; and the answer may be that torch.compile is faster than both kernels by hand. A shape is measured in a process of
its own, because the question comes up while a block is being compiled, where nothing may be compiled beside it. The
choice is kept in `ffn_kernels.json` beside the runs, until hardware, versions or the kernels' sources change.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch

from lfhelpers import runs
from lfhelpers.levers import gated_ffn_cuda
from lfhelpers.levers.gated_ffn_compare import PACKED, Shape, function, passes, ready, timed, weights
from lfhelpers.levers.gated_ffn_op import KERNELS, obstacle
from lfhelpers.measure import hardware

ROUNDS = 11
TIMED_S = 1.0
LIMIT_S = 300
Found = dict[str, dict[str, Any]]
"""{implementation: {"ms": float} or {"failed": sentence}}"""


@torch.compiler.assume_constant_result
def choose(rows: int, width: int, hidden: int, dtype: torch.dtype, backward: bool, kind: str, training: bool) -> str:
    """torch, compile, triton or cuda for a shape; kind: the device's. Under torch.compile it becomes a constant.

    Nothing is measured on a CPU, in evaluation, or while a CUDA graph is recorded: one that works is taken.
    """
    if kind != "cuda":
        return _said(f"torch, as there is no GPU to compare kernels on ({kind})", "torch")
    return _for(Shape(rows, width, hidden, str(dtype).removeprefix("torch."), backward),
                training and not torch.cuda.is_current_stream_capturing(), torch.cuda.current_device())


def measure(shape: Shape, device: torch.device, names: Sequence[str] = PACKED, rounds: int = ROUNDS) -> Found:
    """Each implementation's median milliseconds on this device, or why it failed."""
    found: Found = {}
    sides, counts = {}, {}
    for name in names:
        why = obstacle(name if name in KERNELS else "torch", device)
        try:
            if why is not None:
                raise RuntimeError(why)
            work, counts[name] = passes(function(name), weights(shape, True, device), shape, device)
            sides[name] = ready(work, device)
        except Exception as error:  # whatever a compiler raises; the others can still be measured
            found[name] = {"failed": (str(error).strip() or type(error).__name__).partition("\n")[0]}
    for name, seconds in timed(sides, rounds, device, TIMED_S).items():
        found[name] = {"ms": 1e3 * sorted(seconds)[len(seconds) // 2] / counts[name]}
    return found


def fastest(found: Found) -> str:
    """The implementation with the least time; torch where none has any."""
    times = {name: result["ms"] for name, result in found.items() if "ms" in result}
    return min(times, key=lambda name: times[name], default="torch")


def line(shape: Shape, chosen: str, found: Found) -> str:
    """`torch.compile is faster, 1.23 ms; triton 1.25; cuda failed (there is no nvcc) (4096 x 2048 x 6144, ...)`."""
    names = sorted(found, key=lambda name: (name != chosen, found[name].get("ms", float("inf"))))
    said = [f"{name} {found[name]['ms']:.3f}" if "ms" in found[name] else f"{name} failed ({found[name]['failed']})"
            for name in names]
    if "ms" in found.get(chosen, {}):
        said[0] = f"{'torch.compile is faster' if chosen == 'compile' else chosen}, {found[chosen]['ms']:.3f} ms"
    else:
        said.insert(0, f"{chosen}, as nothing could be measured")
    what = f"{shape.rows} x {shape.width} x {shape.hidden}, {shape.dtype}, forward{' and backward' * shape.backward}"
    return f"{'; '.join(said)} ({what})"


def situation(shape: Shape, device: int) -> dict[str, Any]:
    """All that the choice may depend on: the GPU, versions, a compiler, the kernels' sources, and the shape."""
    sources = [gated_ffn_cuda.SOURCE, *sorted(Path(__file__).parent.glob("gated_ffn*.py"))]
    return {"gpu": torch.cuda.get_device_name(device), "shape": shape._asdict(), "nvcc": shutil.which("nvcc"),
            "versions": {name: hardware.version(name) for name in ("torch", "triton")} | {"cuda": torch.version.cuda},
            "sources": hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()}


def kept(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was found in this situation: date, kernel, found and situation; None where nobody has measured."""
    with contextlib.suppress(OSError, orjson.JSONDecodeError):  # then it is measured again
        entry: dict[str, Any] | None = orjson.loads(file().read_bytes()).get(_key(facts))
        return entry
    return None


def keep(facts: Mapping[str, Any], found: Found) -> str:
    """Store what was found, unless nothing could be measured, and return the choice."""
    chosen = fastest(found)
    if not any("ms" in result for result in found.values()):
        return chosen
    entry = {"date": runs.now(), "kernel": chosen, "found": found, "situation": facts}
    with contextlib.suppress(OSError):  # it is a convenience: a full disk is the run's to complain about
        file().parent.mkdir(parents=True, exist_ok=True)
        before = {}
        with contextlib.suppress(OSError, orjson.JSONDecodeError):
            before = orjson.loads(file().read_bytes())
        runs.write_atomic(file(), orjson.dumps(before | {_key(facts): entry}, option=orjson.OPT_INDENT_2))
    return chosen


def file() -> Path:
    """Where choices are kept."""
    return runs.root() / "ffn_kernels.json"


@functools.cache
def _for(shape: Shape, may_measure: bool, device: int) -> str:
    facts = situation(shape, device)
    if (known := kept(facts)) is None and not may_measure:
        return "torch" if obstacle("triton", torch.device("cuda", device)) else "triton"
    if known is None:
        with gated_ffn_cuda.alone(file()):  # ranks of one host ask at the same time: the first one measures
            known = kept(facts) or {"found": (found := _apart(shape, device)), "kernel": keep(facts, found)}
    found, chosen = dict(known["found"]), known["kernel"]
    while why := obstacle(chosen, torch.device("cuda", device)) if chosen in KERNELS else None:  # loads what it needs
        found[chosen] = {"failed": why}
        chosen = fastest(found)
    return _said(line(shape, chosen, found) + (f", measured {known['date'][:16]}" if "date" in known else ""), chosen)


def _apart(shape: Shape, device: int) -> Found:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "lfhelpers.levers.gated_ffn_choice", orjson.dumps([*shape]).decode(), str(device)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"torch": {"failed": f"measuring took more than {LIMIT_S} s"}}
    try:
        found: Found = orjson.loads(done.stdout.splitlines()[-1])
    except (IndexError, orjson.JSONDecodeError):
        return {"torch": {"failed": (done.stderr.strip().splitlines() or ["no words"])[-1]}}
    return found


@functools.cache
def _said(sentence: str, kernel: str) -> str:
    print(f"ffn: {sentence}", flush=True)
    return kernel


def _key(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def main() -> None:
    """Measure the shape that the command line gives on one GPU; print what was found as one line of JSON."""
    device = torch.device("cuda", int(sys.argv[2]))
    torch.cuda.set_device(device)
    print(orjson.dumps(measure(Shape(*orjson.loads(sys.argv[1])), device)).decode())


if __name__ == "__main__":
    main()
