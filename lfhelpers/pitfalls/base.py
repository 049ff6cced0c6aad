"""What the pitfalls share: how each is told, a counter of what stays in memory, and a small workload to train."""

from __future__ import annotations

import gc
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lfhelpers import runs
from lfhelpers.data.shards import write
from lfhelpers.recipe import PrecisionFields, Recipe, recipe
from lfhelpers.runs import Run
from lfhelpers.train.loop import train
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks, identify
from lfhelpers.workloads.base import Batch, Fields

ALONE = Ranks(0, 1, torch.device("cpu"))
SAMPLES = 64
"""Samples of the small dataset."""


@dataclass(frozen=True)
class About:
    """A pitfall in words: what one sees, why, what to do, and what its number counts, with the unit."""

    symptom: str
    cause: str
    cure: str
    measured: str


class Held:
    """Counts the bytes of those tensors given to it that are still alive, and keeps none of them."""

    def __init__(self) -> None:
        self._given: list[weakref.ref[Tensor]] = []

    def __call__(self, tensor: Tensor) -> Tensor:
        """Note a tensor; returns it."""
        self._given.append(weakref.ref(tensor))
        return tensor

    def mib(self) -> float:
        """MiB of the tensors that are alive now."""
        return sum(tensor.nbytes for given in self._given if (tensor := given()) is not None) / 2**20


class Small:
    """A workload of four numbers a sample: y = w x by a small network, with a weight for each sample."""

    fields = Fields(images=(), size=8, others=("state.f32",))

    def __init__(self, job: Recipe) -> None:
        self.job = job

    def model(self) -> nn.Module:
        """Two linear layers."""
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def sample(self, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """x [4], y [2], weight []."""
        values = torch.tensor(struct.unpack("<8f", members["state.f32"]))
        return {"x": values[:4], "y": values[4:6], "weight": values[6].abs() + 0.1}

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """A little noise for each target."""
        return {"noise": 0.1 * torch.randn(samples, 2, generator=generator, device=generator.device)}

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Weighted squared error, and the weight."""
        error = ((model(batch["x"]) - batch["y"] + draws["noise"]) ** 2).float().sum(1)
        weight = batch["weight"] * batch["valid"]
        return (error * weight).sum(), weight.sum()

    def evaluate(self, model: nn.Module, samples: int, device: torch.device) -> dict[str, float]:
        """Nothing is held out."""
        return {}

    def flops_per_sample(self) -> float:
        """Six for each weight."""
        return 6.0 * (4 * 8 + 8 * 2)

    def default_lr(self) -> float:
        """Fast enough to see."""
        return 1e-2


def members(index: int) -> dict[str, bytes]:
    """The small dataset's sample: eight numbers by its index."""
    values = torch.randn(8, generator=torch.Generator().manual_seed(index)).tolist()
    return {"state.f32": struct.pack("<8f", *values)}


@contextmanager
def job(*overrides: str, use: type = Small) -> Iterator[Recipe]:
    """A recipe of 8 steps of `use` on a small dataset, which goes with the block."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "shards", members, SAMPLES, shard_mb=0.02, progress=False)
        yield recipe("competent", f"data.path={folder}/shards", f"workload.use={use.__module__}:{use.__name__}",
                     "batch.micro=8", "steps=8", "data.workers=0", "data.augment=false", "log.skip=2",
                     "log.probe=false", "precision.mode=fp32", "device=cpu", *overrides)


@contextmanager
def trained(*overrides: str, use: type = Small) -> Iterator[Run]:
    """A run of `job`, in this process alone, on the recipe's device; its folder goes with the block."""
    with job(*overrides, use=use) as chosen, elsewhere():
        run = runs.create(chosen)
        train(chosen, run, identify(chosen.device))
        yield run


@contextmanager
def elsewhere() -> Iterator[None]:
    """Runs of this process are made in a folder that goes with the block."""
    before = os.environ.get("LFHELPERS_RUNS")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LFHELPERS_RUNS"] = folder
        try:
            yield
        finally:
            del os.environ["LFHELPERS_RUNS"]
            os.environ |= {"LFHELPERS_RUNS": before} if before is not None else {}


def optimizer_of(model: nn.Module, *overrides: str, mode: Literal["fp32", "fp16"] = "fp32",
                 masters: Any = None) -> tuple[Optimizer, torch.amp.GradScaler]:
    """lfhelpers' own optimizer around a model on a CPU, and its gradient scaler, which is at work in fp16 alone."""
    chosen = recipe("competent", "optimizer.warmup=0", "optimizer.schedule=constant", *overrides)
    scaler = Precision(PrecisionFields(mode=mode), ALONE.device).scaler
    return Optimizer(chosen, model, chosen.optimizer.lr or 1e-2, scaler, masters=masters), scaler


def repeated(draws: Sequence[float]) -> float:
    """Share of the draws, in percent, that another one made before."""
    return 100 * (1 - len(set(draws)) / len(draws))


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's collector rests, as it does between two of its rounds in a run that makes few objects."""
    gc.freeze()  # what was there before costs no time in a collection inside
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
