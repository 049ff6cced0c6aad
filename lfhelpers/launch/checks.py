"""What can be refused before anything starts: the number of ranks, the GPUs, the port.

GPUs are counted through NVML, because asking torch would create a CUDA context in the notebook's kernel, which then
holds GPU memory and spoils the job's figures.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket

import pynvml

from lfhelpers.errors import LfError
from lfhelpers.recipe import Recipe


def check(job: Recipe, nproc: int, port: int | None) -> None:
    """Raise LfError where `job` cannot run on `nproc` ranks of this machine, or `port` is taken."""
    if nproc < 1:
        raise LfError(f"nproc = {nproc}: a job needs at least 1 rank.")
    if job.device != "cpu":
        gpus, why = visible_gpus()
        if job.device == "cuda" and not gpus:
            raise LfError(f"recipe.device = 'cuda', but no GPU is visible ({why}); take device='cpu' or 'auto'.")
        if gpus and nproc > gpus:
            raise LfError(f"nproc = {nproc}, but visible GPUs = {gpus} ({why}) and every rank needs its own; "
                          f"take nproc={gpus} or device='cpu'.")
    if port is not None:
        check_port(port)


def check_port(port: int) -> None:
    """Raise LfError unless a server can listen on this TCP port of the machine now."""
    if not 0 < port < 65536:
        raise LfError(f"port = {port} is no TCP port; take one from 1024 to 65535.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a job that just ended does not block its port
        try:
            probe.bind(("", port))
        except OSError as error:
            why = "is already in use" if error.errno == errno.EADDRINUSE else f"can't be used ({error.strerror})"
            raise LfError(f"port {port} {why}; give another, or none to have a free one chosen.") from error


def free_port() -> int:
    """A TCP port on which nobody listens now, below those that the system hands out by itself."""
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(LfError):
            check_port(port)
            return port
    raise LfError("no free TCP port was found from 20000 to 32000; give one with port=.")


def visible_gpus() -> tuple[int, str]:
    """(GPUs that a CUDA program started now would see, where that number comes from); creates no CUDA context."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return 0, f"NVML: {error}"
    try:
        uuids = [str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))
                 for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return len(uuids), "NVML"
    return count_visible(listed, uuids), f"CUDA_VISIBLE_DEVICES={listed}"


def count_visible(listed: str, uuids: list[str]) -> int:
    """How many of a machine's GPUs CUDA_VISIBLE_DEVICES leaves; CUDA stops at the first entry that names none."""
    count = 0
    for entry in (part.strip() for part in listed.split(",")):
        if entry.isdecimal():
            known = int(entry) < len(uuids)
        else:
            known = entry.startswith("MIG-") or (entry != "" and any(uuid.startswith(entry) for uuid in uuids))
        if not known:
            break
        count += 1
    return count
