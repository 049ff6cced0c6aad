"""One notebook, played to its end in a kernel of its own, and judged by what it kept of its promises.

papermill injects the parameters and runs the cells; its verdict is not asked for. It calls a notebook that left by
`sys.exit(0)` a success, it marks the cell in which a kernel died as completed, and it knows nothing of promises.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import nbformat
import orjson
import papermill
import zmq
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.notebook import exercises, results
from lfhelpers.notebook.progress import Progress

RESULTS = "results.json"
LOG = "kernel.log"
STARTING = 300.0
"""Seconds that a kernel may take to come up: a shared file system, or other playbooks beside this one, make it slow."""


@dataclass(frozen=True)
class Outcome:
    """How a notebook ended: state (done, failed, interrupted), why, in which cell (from 1), after how long [s]."""

    state: str
    reason: str
    cell: int | None
    seconds: float
    details: str = ""
    """The last lines of the traceback, or of what a dying kernel said."""


def execute(path: Path, source: NotebookNode, folder: Path, values: Mapping[str, Any], limit: float,
            progress: Progress) -> Outcome:
    """Play the notebook; leaves its executed copy and results.json in `folder`, also when it fails or is interrupted.

    `limit` is for all cells together, in seconds. The kernel starts in the notebook's own folder, as JupyterLab starts
    it.
    """
    partial = folder / f".{path.stem}.running.ipynb"
    partial.unlink(missing_ok=True)  # a killed runner's
    started, left = time.monotonic(), _Left(limit)
    trouble, said, stopped = "", "", False
    with _environment(results.RESULTS_FILE, str(folder / RESULTS)), _stderr_to(folder / LOG), progress:
        try:
            papermill.execute_notebook(
                _braced(path), _braced(partial), dict(values), kernel_name="python3", cwd=path.parent,
                timeout_func=left, start_timeout=STARTING, progress_bar=False, coalesce_streams=True,
                on_cell_execute=progress.cell, config=_encrypted())
        except PapermillExecutionError:
            pass  # the saved copy holds the error
        except TimeoutError:
            trouble = f"the notebook took longer than {limit:g} s, and this cell was running then"
        except RuntimeError as error:  # nbclient's DeadKernelError, and a kernel that never came up
            trouble = f"the kernel died ({error}), as it does when memory runs out or native code crashes"
            said = _tail((folder / LOG).read_text(errors="replace"))
        except KeyboardInterrupt:
            trouble, stopped = "the runner was interrupted", True
    played = nbformat.read(partial if partial.exists() else path, as_version=4)
    reason, cell, details = _judge(played, source, folder, trouble)
    _keep(played, folder / path.name, cell if trouble else None, trouble)
    partial.unlink(missing_ok=True)
    state = "interrupted" if stopped else "failed" if reason else "done"
    number = _position(cell, source) if cell is not None else None
    return Outcome(state, reason, number, time.monotonic() - started, details or said)


class _Left:
    """The seconds that a cell may take, called when it begins: what the cells before it have left of the limit."""

    def __init__(self, limit: float) -> None:
        self.limit, self.end = limit, 0.0

    def __call__(self, cell: NotebookNode) -> float:
        self.end = self.end or time.monotonic() + self.limit
        return max(self.end - time.monotonic(), 0.01)  # nbclient takes 0 for no limit at all


def load_results(folder: Path) -> dict[str, Any] | None:
    """The results file of a played notebook, or None where it wrote none."""
    path = folder / RESULTS
    return orjson.loads(path.read_bytes()) if path.exists() else None


def check_kernel() -> None:
    """Raises LfError unless the kernel 'python3' is this very interpreter; another one has other packages."""
    try:
        program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel as error:
        raise LfError("Jupyter has no kernel 'python3'; install it with: python -m pip install ipykernel") from error
    generic = {"python", "python3", "python{}.{}".format(*sys.version_info)}  # these become sys.executable
    if program not in generic and Path(program) != Path(sys.executable):
        raise LfError(f"the kernel 'python3' starts {program}, not {sys.executable}; "
                      "mend it with: python -m ipykernel install --sys-prefix")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP act like Ctrl-C inside the block: papermill alone would leave the jobs of a killed one.

    A signal that is ignored, as nohup does with SIGHUP, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _judge(played: NotebookNode, source: NotebookNode, folder: Path,
           trouble: str) -> tuple[str, NotebookNode | None, str]:
    """(reason, cell, traceback): an empty reason means that everything ran and every promise was kept."""
    code = [cell for cell in played.cells if cell.cell_type == "code" and cell.source.strip()]
    for cell in code:
        for output in cell.outputs:
            if output.output_type == "error" and not trouble:
                return _error_sentence(output), cell, _tail("\n".join(output.traceback))
    if trouble:
        begun = [cell for cell in code if cell.metadata.get("papermill", {}).get("start_time")]
        return trouble, begun[-1] if begun else None, ""
    for cell in code:
        if cell.execution_count is None:
            return "the cell was not run", cell, ""
    return _broken_promise(source, load_results(folder)), None, ""


def _broken_promise(source: NotebookNode, found: dict[str, Any] | None) -> str:
    if found is None or not found["expected"]:
        return "it promises no results; call expect('name', ...) near its top"
    if lost := results.missing(found):
        return f"it promised the results {', '.join(lost)}, and neither recorded nor skipped them"
    return "; ".join(exercises.unproven(source, found))


def _error_sentence(output: NotebookNode) -> str:
    if output.ename == "SystemExit":
        return "the cell left the notebook by exit, so no cell after it ran; skip a result with a reason instead"
    return f"{output.ename}: {output.evalue}"


def _tail(text: str, lines: int = 25) -> str:
    """The last lines, without the colours that IPython paints tracebacks with."""
    return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()[-lines:])


def _keep(played: NotebookNode, copy: Path, broken: NotebookNode | None, trouble: str) -> None:
    """Save the executed copy; a cell that ended without an error of its own gets one that says what happened to it."""
    if broken is not None:
        for cell in played.cells[played.cells.index(broken):]:
            cell.metadata.papermill.status = "failed" if cell is broken else "pending"
        broken.outputs.append(nbformat.v4.new_output("error", ename="Stopped", evalue=trouble, traceback=[trouble]))
    played.metadata.pop("widgets", None)  # megabytes of state that no page can use without its server
    runs.write_atomic(copy, nbformat.writes(played).encode())


def _position(cell: NotebookNode, source: NotebookNode) -> int | None:
    """The cell's number in the source notebook, counted from 1 over all cells; None for the injected one."""
    ids = [item.get("id") for item in source.cells]
    return ids.index(cell.id) + 1 if cell.id in ids else None


def _encrypted() -> Config:
    """Encrypt the talk of runner and kernel where ZeroMQ can: it is TCP, which others on the host may hear."""
    return Config({"KernelManager": {"transport_encryption": "auto"}} if zmq.has("curve") else {})


def _braced(path: Path) -> str:
    """papermill formats the paths it is given: braces in a folder's name must be doubled."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send what the kernel and its native libraries say on stderr to a file: a crash is explained nowhere else."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """An environment variable for the block; the kernel inherits it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
