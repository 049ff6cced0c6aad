"""A workload small enough to check by hand: a linear map on 4 numbers, with a weight for each sample."""

from __future__ import annotations

import struct

import torch
from torch import nn

from lfhelpers.measure.clock import StepClock
from lfhelpers.recipe import recipe
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.step import Step
from lfhelpers.workloads.base import Fields

ALONE = Ranks(0, 1, torch.device("cpu"))


class ToyModel(nn.Sequential):
    """Has a forward of its own: torch.compile leaves a plain nn.Sequential eager when it is compiled in place."""

    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


class Toy:
    """y = w x, weighted squared error plus a little noise from the draws."""

    fields = Fields(images=(), size=8, others=("state.f32",))

    def __init__(self, job) -> None:
        self.job = job

    def model(self):
        return ToyModel(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(self.job.workload.dropout), nn.Linear(8, 2))

    def sample(self, members):
        values = torch.tensor(struct.unpack("<8f", members["state.f32"]))
        return {"x": values[:4], "y": values[4:6], "weight": values[6].abs() + 0.1}

    def draws(self, samples, generator):
        return {"noise": torch.randn(samples, 2, generator=generator, device=generator.device)}

    def loss(self, model, batch, draws):
        error = ((model(batch["x"]) - batch["y"] + 0.1 * draws["noise"]) ** 2).float().sum(1)
        weight = batch["weight"] * batch["valid"]
        return (error * weight).sum(), weight.sum()

    def blocks(self, model):
        return [model[0]]

    def evaluate(self, model, samples, device):
        return {"bias": float(model[3].bias.sum())}

    def flops_per_sample(self):
        return 6.0 * (4 * 8 + 8 * 2)

    def default_lr(self):
        return 1e-2


def batches(count, size, seed=0):
    """`count` batches of `size` samples whose weights differ widely, and their draws."""
    generator = torch.Generator().manual_seed(seed)
    return [({"x": torch.randn(size, 4, generator=generator), "y": torch.randn(size, 2, generator=generator),
              "weight": torch.rand(size, generator=generator) ** 3 * 10 + 0.01, "valid": torch.ones(size)},
             {"noise": torch.randn(size, 2, generator=generator)}) for _ in range(count)]


def concatenated(pairs):
    """Several batches as one."""
    return tuple({name: torch.cat([pair[part][name] for pair in pairs]) for name in pairs[0][part]} for part in (0, 1))


def trainer(*overrides, samples=8, seed=0):
    """(step, optimizer, model) of a fresh toy in this process alone."""
    job = recipe("competent", "precision.mode=fp32", "device=auto", *overrides)
    torch.manual_seed(seed)
    workload = Toy(job)
    model = workload.model()
    precision = Precision(job.precision, ALONE.device)
    optimizer = Optimizer(job, model, workload.default_lr(), precision.scaler)
    step = Step(workload, model, optimizer, precision, ALONE, StepClock(ALONE.device), samples)
    return step, optimizer, model
