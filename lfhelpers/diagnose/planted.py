"""Bottlenecks planted on purpose in the `vla` workload, to see that the report finds each.

Each is something that real training code does, and none changes the loss. Use one as a workload:
`workload.use=lfhelpers.diagnose.planted:SlowLoader`.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lfhelpers.levers.comm_hooks import Exchange, Future, beside
from lfhelpers.recipe import Recipe
from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.workload import Vla

SLOW_SECONDS = 0.06
"""How late each sample's bytes come; workload.options.slow_seconds says otherwise."""
LATE_SECONDS = 0.06
"""How much longer than the others the last rank computes; workload.options.late_seconds says otherwise."""
LINK_GB_S = 2.0
"""What the slow exchange carries; workload.options.link_gb_s says otherwise."""
MEAN, SCALE = 0.0, 1.0
"""Statistics that change no action, so that the loss stays what it was."""


class SlowLoader(Vla):
    """Each sample waits 60 ms for its bytes, as from a busy network file system."""

    def sample(self, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """Vla's sample, late."""
        time.sleep(_seconds(self, "slow_seconds", SLOW_SECONDS))
        return super().sample(members)


class TinyOperators(Vla):
    """Actions are normalised number by number in Python, as code written for one sample does."""

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Vla's loss, after thousands of operators on one number each; workload.options.rounds: so many times over."""
        for _ in range(_rounds(self)):
            chunks = [torch.stack([torch.stack([(number - MEAN) / SCALE for number in step]) for step in chunk])
                      for chunk in batch["action"]]
        return super().loss(model, batch | {"action": torch.stack(chunks)}, draws)


class HostReads(Vla):
    """A guard asks each parameter in every step whether it is still finite, and the host waits for each answer."""

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Vla's loss, after the guard; workload.options.rounds: so many times over."""
        for name, parameter in [*model.named_parameters()] * _rounds(self):
            if not torch.isfinite(parameter.detach().sum()).item():
                raise FloatingPointError(f"{name} is not finite")
        return super().loss(model, batch, draws)


class LateRank(Vla):
    """The last rank computes longer than the others, as on a host with other work or under a lower clock."""

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Vla's loss, late on the last rank."""
        if int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1:
            time.sleep(_seconds(self, "late_seconds", LATE_SECONDS))
        return super().loss(model, batch, draws)


class SlowExchange(Vla):
    """Gradients cross as ever, and each message is then held back until a link of 2 GB/s would have carried it.

    For NCCL, whose real link can't be slowed and freed again in one process: the GPU's stream of messages spins, on a
    CPU their thread sleeps. Only for the exchange of DDP itself, without a hook of its own.
    """

    def __init__(self, job: Recipe) -> None:
        super().__init__(job)
        self._slowed: Callable[[], nn.Module | None] = lambda: None  # not held: it must not outlive the group

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Vla's loss; the first one under DDP lays the slow link."""
        if isinstance(model, DistributedDataParallel) and self._slowed() is not model:
            self._slowed, rate = weakref.ref(model), 1e9 * float(self.job.workload.options.get("link_gb_s", LINK_GB_S))
            exchange, device = Exchange(dist.get_world_size()), next(model.parameters()).device
            cycles = _cycles_a_second(device) if device.type == "cuda" else 0.0
            model.register_comm_hook(None, lambda _, bucket: _held_back(exchange, bucket, rate, cycles))
        return super().loss(model, batch, draws)


def _held_back(exchange: Exchange, bucket: dist.GradBucket, rate: float, cycles: float) -> Future:
    """The bucket's mean over the ranks, once a link of `rate` bytes a second had carried it."""
    values = bucket.buffer().div_(exchange.world)
    sending = exchange.all_reduce(values)

    def work() -> None:
        sending.wait()
        if values.is_cuda:
            torch.cuda._sleep(int(cycles * values.nbytes / rate))
        else:
            time.sleep(values.nbytes / rate)

    return beside(values, work)


def _cycles_a_second(device: torch.device) -> float:
    """Of `torch.cuda._sleep`; waits for the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**7)  # a clock that slept is slower at first
    start.record()
    torch.cuda._sleep(10**8)
    end.record()
    end.synchronize()
    return 1e8 / (start.elapsed_time(end) / 1e3)


def _seconds(workload: Vla, name: str, usual: float) -> float:
    return float(workload.job.workload.options.get(name, usual))


def _rounds(workload: Vla) -> int:
    return int(workload.job.workload.options.get("rounds", 1))
