"""Bottlenecks planted on purpose in the `vla` workload, to see that the report finds each.

Each is something that real training code does, and none changes the loss. Use one as a workload:
`workload.use=lfhelpers.diagnose.planted:SlowLoader`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.workload import Vla

SLOW_SECONDS = 0.06
"""How late each sample's bytes come; workload.options.slow_seconds says otherwise."""
LATE_SECONDS = 0.06
"""How much longer than the others the last rank computes; workload.options.late_seconds says otherwise."""
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


def _seconds(workload: Vla, name: str, usual: float) -> float:
    return float(workload.job.workload.options.get(name, usual))


def _rounds(workload: Vla) -> int:
    return int(workload.job.workload.options.get("rounds", 1))
