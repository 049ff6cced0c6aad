"""What a step would take on 8, 64 or 1,024 GPUs, from what was measured on two: a projection, with its assumptions.

Nothing here was run on so many GPUs. Computation stays as it is (each GPU keeps its micro-batch, so the global batch
grows with them), the link is scaled by what ring and tree algorithms send, and the buckets are simulated over it. What
a real cluster adds (other traffic, slow hosts, storage) is left out: read the figures as the best that may be hoped
for. The projection for the measured number of GPUs stands beside the measurement, as a check.

Sources: ring cost, Thakur et al. 2005; double binary trees, Sanders et al. 2009, which NCCL uses between hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from lfhelpers.errors import LfError
from lfhelpers.levers import buckets_sim
from lfhelpers.levers.tuner import Limits, Model
from lfhelpers.measure.link import Link

GPUS = (8, 64, 1024)


@dataclass(frozen=True)
class Network:
    """What is assumed of the machines: GPUs of a host, GB/s of all its network cards together, us from host to host."""

    gpus_a_host: int = 8
    host_gb_s: float = 400.0
    hop_us: float = 15.0


@dataclass(frozen=True)
class Projected:
    """A step on `gpus` GPUs; efficiency is that of weak scaling, against one GPU without exchange."""

    gpus: int
    hosts: int
    step_ms: float
    exposed_ms: float
    waiting_ms: float
    efficiency: float
    samples_per_s: float


@dataclass(frozen=True)
class Projection:
    """Rows by number of GPUs, the assumptions behind them in words, and predicted over measured step where measured."""

    rows: tuple[Projected, ...]
    assumptions: tuple[str, ...]
    check: float | None


def project(model: Model, limits: Limits, alone_ms: float, samples: int, gpus: Sequence[int] = GPUS,
            network: Network = Network(), jitter_ms: float = 0.0, measured_ms: float | None = None) -> Projection:
    """Project a step that takes `alone_ms` without exchange and learns from `samples` samples on each GPU.

    jitter_ms: standard deviation of a rank's own step; all wait for the slowest, later the more there are.
    measured_ms: the step over the ranks of `model.link`, for the check.
    """
    two = model.link.ranks
    found = [_projected(model, limits, alone_ms, samples, count, network, jitter_ms) for count in (two, *gpus)]
    check = found[0].step_ms / measured_ms if measured_ms else None
    return Projection(tuple(found), _assumptions(model, network, jitter_ms, samples), check)


def transfer_ms(link: Link, gpus: int, network: Network, size: float) -> float:
    """An all-reduce of `size` bytes over `gpus` GPUs, scaled from a link that was measured inside one host.

    Inside a host a ring: 2 (n - 1) messages, and 2 (n - 1) / n of the bytes at the measured rate. Between hosts a tree
    of their own: 2 log2 of the hosts in latency. The two stages are pipelined, so the slower one counts.
    LfError for one GPU, and for a number of GPUs that doesn't fill its hosts.
    """
    if gpus < 2 or (gpus > network.gpus_a_host and gpus % network.gpus_a_host):
        raise LfError(f"{gpus} GPUs can't be projected: it takes two or more, and whole hosts of "
                      f"{network.gpus_a_host}.")
    inside, hosts = min(gpus, network.gpus_a_host), math.ceil(gpus / network.gpus_a_host)
    latency = link.times_ms[0] * (inside - 1) / (link.ranks - 1)
    bytes_ms = max(0.0, link.ms(size) - link.times_ms[0])
    ring = bytes_ms * _share(inside) / _share(link.ranks)
    between = size * _share(hosts) / (network.host_gb_s * 1e6) if hosts > 1 else 0.0
    hops = 2 * math.ceil(math.log2(hosts)) * network.hop_us / 1e3 if hosts > 1 else 0.0
    return latency + hops + max(ring, between)


def late_ms(ranks: int, jitter_ms: float) -> float:
    """By how much the slowest of so many ranks is later than the mean, if steps scatter normally (Blom 1958)."""
    return jitter_ms * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _projected(model: Model, limits: Limits, alone_ms: float, samples: int, gpus: int, network: Network,
               jitter_ms: float) -> Projected:
    def transfer(size: float) -> float:
        return model.stretch * transfer_ms(model.link, gpus, network, model.wire * size)
    outcome = buckets_sim.simulate(model.gradients, limits, transfer, model.pass_ms, model.slowing)
    waiting = late_ms(gpus, jitter_ms)
    step = alone_ms + outcome.added_ms + waiting
    return Projected(gpus, math.ceil(gpus / network.gpus_a_host), step, outcome.added_ms, waiting, alone_ms / step,
                     1e3 * samples * gpus / step)


def _share(ranks: int) -> float:
    """How often each byte crosses a rank's link in an all-reduce."""
    return 2 * (ranks - 1) / ranks


def _assumptions(model: Model, network: Network, jitter_ms: float, samples: int) -> tuple[str, ...]:
    return (f"measured: computation, and {model.link}",
            f"every GPU keeps its {samples} samples, so the global batch grows with the GPUs",
            f"hosts of {network.gpus_a_host} GPUs whose links are like the measured one",
            f"{network.host_gb_s:g} GB/s between hosts, {network.hop_us:g} us from one to the next, no other traffic",
            f"steps of a rank scatter by {jitter_ms:.3g} ms, and all wait for the slowest",
            f"transfers are {model.stretch:.2f} times as long as alone, and computation beside them "
            f"{1 + model.slowing:.2f} times (both fitted to measured plans)")
