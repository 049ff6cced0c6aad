"""How many images a second a loader delivers to the training device, as normalised float32, and what each one costs.

Only that end makes engines comparable: a loader that hands out uint8 on the host has work left, one that hands out
float32 on the GPU has none. A loader begins with full hands (workers fill their queues while the first batch is made)
and hands out in bursts of as many batches as it has workers, so timing starts after a warm-up and ends with a burst.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from torch import Tensor

from lfhelpers.data import augment_device
from lfhelpers.data.loader import Batch, Loader, Request
from lfhelpers.errors import LfError
from lfhelpers.measure import hardware

LEAST = 2  # batches of the warm-up, and of the timing
POLL = 0.05  # seconds between two looks at the GPU


@dataclass(frozen=True)
class Rate:
    """What was delivered in `seconds` of wall clock.

    cpu_seconds: of this process and its workers. copied_bytes: what went over the bus, None without a GPU.
    gpu_percent: share of time with some kernel on the GPU; jpeg_percent: load of its JPEG engines; None if unknown.
    """

    images: int
    seconds: float
    cpu_seconds: float
    copied_bytes: int | None
    gpu_percent: float | None
    jpeg_percent: float | None

    @property
    def images_per_s(self) -> float:
        """Images (views, not samples) a second."""
        return self.images / self.seconds


@dataclass
class _Tally:
    images: int = 0
    copied: int = 0


def measure(loader: Loader, request: Request, device: torch.device, seconds: float, encoded: float = 0.0) -> Rate:
    """The rate over about `seconds`, after a warm-up of about as long, of what serves `request`; closes the loader.

    encoded: mean bytes of a compressed image, which is what crosses the bus where the engine decodes on the GPU.
    Raises LfError where the loader ends before the time is up.
    """
    with loader:
        taker = _Taker(iter(loader), request, device, encoded)
        taker.take(seconds)
        family = _family()
        _settle(device)
        with _Gpu(device) as gpu:
            cpu, start = _cpu_seconds(family), time.perf_counter()
            tally = taker.take(seconds)
            _settle(device)
            wall, cpu = time.perf_counter() - start, _cpu_seconds(family) - cpu
    on_gpu = device.type == "cuda"
    return Rate(tally.images, wall, cpu, tally.copied if on_gpu else None, gpu.mean("gpu"), gpu.mean("jpeg"))


def delivered(batch: Batch, request: Request, step: int, micro: int, device: torch.device, place: Tensor | None = None
              ) -> Tensor:
    """The batch's images on the device as float32 [B * V, 3, P, P] in -1..1, whatever form the engine gave them.

    What the recipe leaves to the device of RandAugment and MixUp is done, too. place: memory for the result, where it
    has to be made; on a CPU fresh memory costs three times what normalising does, in page faults.
    """
    images = batch["images"].to(device, non_blocking=True)
    data = request.job.data
    if data.aug_on == "device" and (data.rand_augment or data.mixup):
        plan = request.plan
        images = augment_device.apply(images, batch["ids"].numpy(), data, plan.seed, plan.epoch(step), step, micro
                                      )["images"]
    images = images.flatten(0, 1)
    if images.dtype != torch.uint8:
        return images
    images = images.permute(0, 3, 1, 2)
    place = torch.empty(images.shape, device=device) if place is None else place
    return place.copy_(images).div_(127.5).sub_(1)


class _Taker:
    """Takes batches from a loader, in whole bursts: as many as it has workers."""

    def __init__(self, batches: Iterator[Batch], request: Request, device: torch.device, encoded: float) -> None:
        self._batches, self._request, self._device, self._encoded = batches, request, device, encoded
        self._places = request.sequence()
        self._burst = max(1, request.workers())
        size, views = request.fields.size, len(request.fields.images)
        self._place = torch.empty(request.plan.micro * views, 3, size, size, device=device)

    def take(self, seconds: float) -> _Tally:
        """Bursts until the time is up; one that takes longer than three times that is cut."""
        tally, start, count = _Tally(), time.perf_counter(), 0
        while True:
            batch = next(self._batches, None)
            if batch is None:
                raise LfError(f"the loader ended after {count} batches, before {seconds:g} s were over; ask for more.")
            images = delivered(batch, self._request, *next(self._places), self._device, self._place)
            host = batch["images"]
            tally.images += len(images) or len(batch["ids"])  # of samples without images their own number
            tally.copied += int(self._encoded * len(images)) if host.device.type == "cuda" else host.nbytes
            count += 1
            past = time.perf_counter() - start
            if count >= LEAST and past >= seconds and (count % self._burst == 0 or past > 3 * seconds):
                return tally


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _family() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def _cpu_seconds(family: list[psutil.Process]) -> float:
    total = 0.0
    for process in family:
        with contextlib.suppress(psutil.Error):  # it has ended
            times = process.cpu_times()
            total += times.user + times.system
    return total


@dataclass
class _Gpu:
    """Samples NVML in a thread while the block runs; without a GPU or NVML it does nothing."""

    device: torch.device
    seen: dict[str, list[float]] = field(default_factory=lambda: {"gpu": [], "jpeg": []})

    def __enter__(self) -> _Gpu:
        self._ended = threading.Event()
        handle = hardware.nvml_handle(self.device.index or 0) if self.device.type == "cuda" else None
        self._thread = threading.Thread(target=self._sample, args=(handle,), daemon=True) if handle else None
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()

    def mean(self, what: str) -> float | None:
        """Mean percent, or None where nothing could be read."""
        values = self.seen[what]
        return round(sum(values) / len(values), 1) if values else None

    def _sample(self, handle: Any) -> None:
        nvml = hardware.nvml()
        assert nvml is not None
        while not self._ended.wait(POLL):
            with contextlib.suppress(Exception):  # old drivers know the one and not the other
                self.seen["gpu"].append(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                self.seen["jpeg"].append(nvml.nvmlDeviceGetJpgUtilization(handle)[0])
