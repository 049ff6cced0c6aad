"""`lfhelpers bench trace`: how long, and with how much memory, a trace of 100,000 and of 2 million events is diagnosed.

The traces are made here, of one kind of event after the other as torch's profiler writes them: 200 bytes each, steps,
an operator with shapes, its launch, its kernel. Each is read in a process of its own, whose peak of memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from lfhelpers.errors import LfError
from lfhelpers.measure.record import Record, Row

SIZES = (100_000, 2_000_000)
STEPS = 20
OPERATOR_US = 8.0
BEGIN_US = 1_711_964_646_000_000.125
"""Microseconds since 1970, as in traces of torch: with a fraction they are more than a double holds."""


def run(sizes: Sequence[int] = SIZES, repeats: int = 3,
        keep: Callable[[Record], object] = lambda record: None) -> Record:
    """Read and diagnose a trace of each of `sizes` events, `repeats` times; keep: is given the record after each size.

    Rows: seconds of reading and of the whole diagnosis (processor time beside the clock's, since a neighbour counts in
    one alone), MB of the file, and MB of memory at most.
    """
    record = Record("trace", {"sizes": list(sizes), "repeats": repeats, "steps": STEPS}, [], {}, 0.0)
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            write(path, size)
            found = [_apart(path) for _ in range(repeats)]
            rows = [Row.of(f"{size:,} events, {name}", [one[key] for one in found], unit) for name, key, unit in (
                ("read", "read_s", "s"), ("read, processor", "read_cpu_s", "s"), ("diagnosed", "diagnosed_s", "s"),
                ("diagnosed, processor", "diagnosed_cpu_s", "s"), ("with ceilings, processor", "ceilings_cpu_s", "s"),
                ("memory at most", "peak_mb", "MB"))]
            record.rows.extend([Row.of(f"{size:,} events, file", [path.stat().st_size / 1e6], "MB"), *rows])
        keep(record)
    return record


def write(path: Path, count: int) -> None:
    """Write a trace of about `count` events, never more than one step of them in memory."""
    with path.open("wb") as file:
        file.write(b'{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [\n')
        for step in range(STEPS):
            lines = [orjson.dumps(event) for event in _step(step, max(1, count // STEPS // 3))]
            file.write((b",\n" if step else b"") + b",\n".join(lines))
        file.write(b'\n], "traceName": "made", "displayTimeUnit": "ms"}\n')


def _step(step: int, operators: int) -> Iterator[dict[str, Any]]:
    """Events of a step: as many operators, each with a launch and a kernel, and the step's mark."""
    begin = BEGIN_US + step * operators * OPERATOR_US
    for place in range(operators):
        at, number = begin + place * OPERATOR_US, step * operators + place + 1
        yield _event("cpu_op", f"aten::operator_{place % 40}", 1, 100, at, 5.5, {
            "External id": number, "Ev Idx": 3 * number, "Input Dims": [[32, 128], [128]],
            "Input type": ["float", "float"]})
        yield _event("cuda_runtime", "cudaLaunchKernel", 1, 100, at + 1.0, 3.25, {
            "External id": number, "cbid": 211, "correlation": number})
        yield _event("kernel", f"void at::native::elementwise_kernel_{place % 60}<4, at::native::Functor<float>>", 0, 7,
                     at + 6.0, 7.5, {"External id": number, "device": 0, "context": 1, "stream": 7,
                                     "correlation": number, "grid": [64, 1, 1], "block": [128, 1, 1]})
    yield _event("user_annotation", f"ProfilerStep#{step}", 1, 100, begin, operators * OPERATOR_US, {})


def _event(category: str, name: str, process: int, thread: int, start: float, length: float,
           args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": length,
            "args": args}


def _apart(path: Path) -> dict[str, float]:
    """Seconds and megabytes of one diagnosis in a fresh process. Raises LfError with its last line where it fails."""
    done = subprocess.run([sys.executable, "-m", "lfhelpers.bench.diagnosis_scale", str(path)], capture_output=True,
                          text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise LfError(f"the diagnosis of {path.name} failed ({last}); free memory, or measure fewer events.")
    return dict(json.loads(done.stdout))


def main() -> None:
    """`python -m lfhelpers.bench.diagnosis_scale TRACE`: seconds and peak memory as JSON on one line."""
    from lfhelpers.diagnose.trace.read import read
    from lfhelpers.diagnose.trace.report import Diagnosis

    path = Path(sys.argv[1])
    began, cpu = time.perf_counter(), time.process_time()
    trace = read(path)
    read_s, read_cpu_s = time.perf_counter() - began, time.process_time() - cpu
    found = Diagnosis.of([trace])
    diagnosed_s, diagnosed_cpu_s = time.perf_counter() - began, time.process_time() - cpu
    assert found.verdict
    print(json.dumps({"read_s": read_s, "read_cpu_s": read_cpu_s, "diagnosed_s": diagnosed_s,
                      "diagnosed_cpu_s": diagnosed_cpu_s, "ceilings_cpu_s": time.process_time() - cpu,
                      "peak_mb": _peak_mb()}))


def _peak_mb() -> float:
    """Megabytes of memory at most so far; getrusage would count what the parent held before this process began."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
