"""How busy the machine is while a job runs: a thread that samples twice a second and never disturbs the job.

Sampling sees no event shorter than its interval; that is the price of costing nothing inside a step. Whatever can't be
read is None, and no failure here ever reaches the job.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from lfhelpers.measure import hardware

RELIST_EVERY = 10
"""Samples between two looks for new child processes: listing reads every process of the host, sampling one only few."""
LOOKS_BACK = 1.0
"""Seconds of the past for which NVML's utilisation may stand: what is read earlier tells of the time before start()."""

SNMP = Path("/proc/net/snmp")
SLOWED = {0x08: "its hardware's own brake", 0x20: "heat", 0x40: "heat, by its hardware", 0x80: "its power supply"}
"""Why a GPU runs below the clock it was set to, by NVML's bits. Its power limit isn't here: dense products reach it."""


class Monitor:
    """Samples this host from start() to stop().

    `gpu` is torch's device index; none given: the device that this process has in use at start(), if any.
    `pid` is the root of the process tree whose memory is counted (none: this process), `interval` is in seconds.
    """

    def __init__(self, gpu: int | None = None, pid: int | None = None, interval: float = 0.5) -> None:
        self.gpu, self.pid, self.interval = gpu, pid, interval
        self._gpu_percent: list[tuple[float, float]] = []
        self._gpu_bytes: list[int] = []
        self._host_bytes: list[int] = []
        self._cpu_percent = 0.0
        self._energy: list[tuple[float, float]] = []
        self._clocks: list[int] = []
        self._reasons: list[int] = []
        self._segments: list[tuple[int, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="lfhelpers-monitor", daemon=True)

    def start(self) -> Monitor:
        """Begin sampling in a daemon thread; returns itself."""
        if self.gpu is None:
            self.gpu = _current_gpu()
        self._thread.start()
        return self

    def stop(self) -> dict[str, Any]:
        """End sampling and sum up; a second call gives the same answer, and one that was never started knows nothing.

        gpu_percent: mean of NVML's utilisation, the share of time in which some kernel was resident on the GPU; of a
        monitor that ran for less than LOOKS_BACK the last reading. It says nothing about how well that kernel used it:
        one warp in a loop reads 100 %. MFU is the figure for efficiency.
        cpu_percent: mean of the whole machine, 0-100; cpu_count: its logical cores. host_rss_gib: peak of the tree's
        summed resident memory, pages shared between processes counted in each. gpu_memory_gib: peak in use on that GPU
        by anyone. gpu_watts: that GPU's mean power, from its own energy counter. gpu_clock_mhz: median clock of its
        multiprocessors; gpu_slowed: percent of samples in which each reason of SLOWED held it down. GPU figures are
        None without a GPU or NVML, or where it has no such counter. tcp_resent_percent: of this host's segments, as
        Linux counts them.
        """
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        return {
            "gpu_percent": self._busy(),
            "cpu_percent": self._cpu_percent,
            "cpu_count": os.cpu_count() or 1,
            "gpu_watts": self._watts(),
            "host_rss_gib": round(max(self._host_bytes, default=0) / hardware.GIB, 3),
            "gpu_memory_gib": round(max(self._gpu_bytes) / hardware.GIB, 3) if self._gpu_bytes else None,
            "gpu_clock_mhz": statistics.median(self._clocks) if self._clocks else None,
            "gpu_slowed": {why: round(100 * share, 1) for bit, why in SLOWED.items()
                           if (share := sum(bool(seen & bit) for seen in self._reasons) / max(1, len(self._reasons)))},
            "tcp_resent_percent": self._resent(),
        }

    def _sample_until_stopped(self) -> None:
        # psutil measures CPU load between two calls of one thread, so the two around the loop give the exact mean.
        psutil.cpu_percent()
        self._read_segments()
        handle = hardware.nvml_handle(self.gpu) if self.gpu is not None else None
        self._began = time.monotonic()
        for count in itertools.count():
            if count % RELIST_EVERY == 0:
                tree = self._processes()
            self._host_bytes.append(sum(_rss(process) for process in tree))
            if handle is not None:
                self._sample_gpu(handle)
                self._read_energy(handle)
                self._read_clock(handle)
            if self._ended.wait(self.interval):
                break
        self._host_bytes.append(sum(_rss(process) for process in self._processes()))
        self._cpu_percent = psutil.cpu_percent()
        self._read_segments()

    def _sample_gpu(self, handle: object) -> None:
        with contextlib.suppress(Exception):  # NVML may fail at any time: then there is one sample fewer
            module = hardware.nvml()
            assert module is not None
            self._gpu_percent.append((time.monotonic() - self._began, _gpu_percent(handle)))
            self._gpu_bytes.append(module.nvmlDeviceGetMemoryInfo(handle).used)

    def _read_energy(self, handle: object) -> None:
        with contextlib.suppress(Exception):  # counters exist since Volta
            module = hardware.nvml()
            assert module is not None
            joules = module.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
            self._energy = [*self._energy[:1], (time.monotonic(), joules)]

    def _read_clock(self, handle: object) -> None:
        with contextlib.suppress(Exception):  # old drivers have no such reasons
            module = hardware.nvml()
            assert module is not None
            self._clocks.append(module.nvmlDeviceGetClockInfo(handle, module.NVML_CLOCK_SM))
            self._reasons.append(module.nvmlDeviceGetCurrentClocksEventReasons(handle))

    def _read_segments(self) -> None:
        with contextlib.suppress(OSError, KeyError, ValueError):
            names, values = (line.split()[1:] for line in SNMP.read_text().splitlines() if line.startswith("Tcp:"))
            counts = dict(zip(names, values, strict=True))
            self._segments.append((int(counts["OutSegs"]), int(counts["RetransSegs"])))

    def _resent(self) -> float | None:
        if len(self._segments) < 2:
            return None
        (sent, resent), (sent_then, resent_then) = self._segments[-1], self._segments[0]
        return round(100 * (resent - resent_then) / max(1, sent - sent_then), 3)

    def _busy(self) -> float | None:
        shares = [share for at, share in self._gpu_percent if at >= LOOKS_BACK] or [
            share for _, share in self._gpu_percent[-1:]]
        return round(sum(shares) / len(shares), 1) if shares else None

    def _watts(self) -> float | None:
        if len(self._energy) < 2:
            return None
        (began, first), (ended, last) = self._energy
        return round((last - first) / (ended - began), 1)

    def _processes(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []


def load() -> tuple[float, list[float]]:
    """Percent now: the machine's cores, since this thread's last call, and each visible GPU's time with a kernel on it.

    A GPU that doesn't answer is left out.
    """
    handles = (hardware.nvml_handle(index) for index in range(len(hardware.visible_gpus())))
    shares = []
    for handle in handles:
        with contextlib.suppress(Exception):  # NVML may fail at any time
            shares.append(float(_gpu_percent(handle)))
    return psutil.cpu_percent(), shares


def _gpu_percent(handle: object) -> int:
    module = hardware.nvml()
    assert module is not None
    return module.nvmlDeviceGetUtilizationRates(handle).gpu


def _current_gpu() -> int | None:
    """The calling thread's CUDA device, if torch is loaded and has set CUDA up; loads and sets up nothing itself."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else None


def _rss(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:  # it has ended
        return 0
