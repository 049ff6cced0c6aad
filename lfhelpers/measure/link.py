"""What a message costs between these ranks, by its size: twelve sizes, and a model between and beyond them.

A link has a latency, which small messages pay, and a bandwidth, which only large ones reach; between the two lies a
curve of the library's own making (protocols, channels), so the curve is measured and the model follows it. Every
repeat counts as long as its fastest rank took: what other ranks waited for it is not the link's. A few messages follow
each other, as buckets do, since what it takes to start one is hidden behind the one before it. Bandwidth is NCCL's
bus bandwidth, bytes x 2 (n - 1) / n over the time, which tells the wire's rate whatever the number of ranks.
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lfhelpers.errors import LfError

SIZES = 12
BURST = 4
"""Messages in a row that one timing holds."""
LEAST = 4096
MOST = {"cuda": 2**29, "cpu": 2**25}
"""Bytes of the smallest and the largest message: beyond half a GiB NVLink gains nothing, beyond 32 MiB gloo neither."""


@dataclass(frozen=True)
class Link:
    """An all-reduce's milliseconds by its size in bytes, measured over `ranks` ranks; both sequences grow.

    slow: what the link was throttled by on purpose, in words; empty for a link as it is.
    """

    sizes: tuple[int, ...]
    times_ms: tuple[float, ...]
    ranks: int
    backend: str
    slow: str = ""

    @classmethod
    def of(cls, sizes: Sequence[int], times_ms: Sequence[float], ranks: int, backend: str, slow: str = "") -> Link:
        """From medians; where noise makes a larger message cheaper than a smaller one, both cost their mean.

        Raises LfError for fewer than two sizes, and for times that are not above 0.
        """
        if len(sizes) < 2 or len(sizes) != len(times_ms) or min(times_ms) <= 0:
            raise LfError(f"a link needs two or more sizes with a time above 0 each; there are {len(sizes)} sizes and "
                          f"{len(times_ms)} times.")
        from scipy.optimize import isotonic_regression  # a second's import, which every rank would pay

        order = np.argsort(sizes)
        grown = isotonic_regression(np.asarray(times_ms, dtype=float)[order]).x
        return cls(tuple(int(sizes[place]) for place in order), tuple(map(float, grown)), ranks, backend, slow)

    def ms(self, size: float) -> float:
        """Milliseconds of one all-reduce of `size` bytes.

        Between two sizes linear in bytes; below the smallest its time; above the largest at the rate of the last two.
        """
        if size <= self.sizes[0]:
            return self.times_ms[0] if size > 0 else 0.0
        place = min(bisect.bisect_left(self.sizes, size), len(self.sizes) - 1)
        before, after = self.sizes[place - 1], self.sizes[place]
        slope = (self.times_ms[place] - self.times_ms[place - 1]) / (after - before)
        return self.times_ms[place - 1] + slope * (size - before)

    @property
    def latency_us(self) -> float:
        """Microseconds of the smallest message."""
        return 1e3 * self.times_ms[0]

    @property
    def gb_s(self) -> float:
        """Bus bandwidth of the largest message in GB/s."""
        return bus_gb_s(self.sizes[-1], self.times_ms[-1], self.ranks)

    def __str__(self) -> str:
        throttled = f", slowed on purpose ({self.slow})" if self.slow else ""
        return (f"{self.backend} over {self.ranks} ranks: {self.latency_us:.0f} us latency, {self.gb_s:.3g} GB/s with "
                f"{self.sizes[-1] / 2**20:.0f} MiB messages{throttled}")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Link:
        """The link that `as_dict` told."""
        return cls.of(values["sizes"], values["times_ms"], values["ranks"], values["backend"], values["slow"])


def bus_gb_s(size: float, milliseconds: float, ranks: int) -> float:
    """NCCL's bus bandwidth of an all-reduce of `size` bytes, in GB/s."""
    return size * 2 * (ranks - 1) / ranks / milliseconds / 1e6


def sizes(device: str, count: int = SIZES, most: int | None = None) -> tuple[int, ...]:
    """The sizes of a sweep on `cuda` or `cpu`, in bytes: evenly spaced on a logarithmic axis, whole cache lines."""
    end = most or MOST[device]
    return tuple(int(round(size / 256) * 256) for size in np.geomspace(LEAST, end, count))


def sweep(device: Any, repeats: int = 7, of: Sequence[int] | None = None,
          slow: str = "") -> tuple[Link, dict[int, list[float]]]:
    """Time fp32 all-reduces among all ranks; every rank calls this and gets the same: the link, and ms by size.

    The process group must stand; `device` is this rank's torch.device. Sizes take turns, so that drift hits all alike.
    Data are random normal: zeros run faster. LfError with one rank, between which nothing travels.
    """
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    if world < 2:
        raise LfError("a link needs two ranks or more; start the sweep with --ranks 2.")
    chosen = tuple(of or sizes(device.type))
    buffer = torch.randn(max(chosen) // 4, device=device)
    times = torch.full((repeats, len(chosen)), math.nan, dtype=torch.float64)
    for repeat in range(-2, repeats):  # two rounds to open connections and choose algorithms
        for place, size in enumerate(chosen):
            message = buffer[:size // 4]
            taken = _one(message, device)
            message.mul_(world**-BURST)  # sums of sums would overflow
            if repeat >= 0:
                times[repeat, place] = taken
    shared = times.to(device if device.type == "cuda" else "cpu")
    dist.all_reduce(shared, op=dist.ReduceOp.MIN)
    of_size = {size: shared[:, place].tolist() for place, size in enumerate(chosen)}
    medians = [float(np.median(values)) for values in of_size.values()]
    return Link.of(chosen, medians, world, dist.get_backend(), slow), of_size


def _one(message: Any, device: Any) -> float:
    """Milliseconds of one of BURST all-reduces on this rank, from a point at which all ranks are ready."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    if device.type != "cuda":
        began = time.perf_counter()
        _burst(message)
        return 1e3 * (time.perf_counter() - began) / BURST
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    _burst(message)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / BURST


def _burst(message: Any) -> None:
    import torch.distributed as dist

    works = [dist.all_reduce(message, async_op=True) for _ in range(BURST)]
    for work in works:
        work.wait()
