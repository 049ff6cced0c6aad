"""Workloads of a known pace: the recipe says what a batch costs the loader, and a step the device."""

from __future__ import annotations

import functools
import time

import torch

from lfhelpers.workloads.vla.workload import Vla
from tests.train.toy import Toy


def occupy(device: torch.device, milliseconds: float) -> None:
    """Keep the device busy for so long: a GPU by a spinning kernel, which the host does not wait for."""
    if device.type == "cuda":
        torch.cuda._sleep(int(milliseconds * cycles_per_ms()))
    else:
        time.sleep(milliseconds / 1e3)


@functools.cache
def cycles_per_ms() -> float:
    """Of `torch.cuda._sleep`, measured once."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**7)
    start.record()
    torch.cuda._sleep(10**8)
    end.record()
    end.synchronize()
    return 1e8 / start.elapsed_time(end)


class PacedToy(Toy):
    """Making a sample takes options.cost_ms, a forward pass options.step_ms."""

    def sample(self, members):
        time.sleep(self.job.workload.options["cost_ms"] / 1e3)
        return super().sample(members)

    def loss(self, model, batch, draws):
        occupy(batch["x"].device, self.job.workload.options["step_ms"])
        return super().loss(model, batch, draws)


class PacedVla(Vla):
    """`vla` whose forward pass takes options.step_ms longer."""

    def loss(self, model, batch, draws):
        occupy(batch["tokens"].device, self.job.workload.options["step_ms"])
        return super().loss(model, batch, draws)
