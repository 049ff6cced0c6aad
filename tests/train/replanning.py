"""A toy in float64 that runs out of memory where it is told to, and remembers which samples were learnt from."""

import os

import torch
from torch import nn

from lfhelpers.train.checkpoint import bare
from lfhelpers.train.hooks import Hook
from tests.train.toy import Toy

TRIED = "CUDA out of memory. Tried to allocate 2.00 GiB"


class Net(nn.Module):
    """Three layers, the first one frozen."""

    def __init__(self):
        super().__init__()
        self.frozen, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.frozen.requires_grad_(False)

    def forward(self, batch):
        self.hidden = torch.tanh(self.middle(batch["z"] if "z" in batch else self.frozen(batch["x"])))
        return self.last(self.hidden)


class Planted(Toy, Hook):
    """Fails in micro-batch `micro` of `step` while it has more than `above` rows. As a hook it keeps applied ids.

    at: "forward", or in backward: "late" before any parameter's gradient, "early" after those of the last layer.
    """

    def __init__(self, job, at=None, step=-1, micro=0, above=3):
        super().__init__(job)
        self.at, self.fails, self.micro, self.above = at, step, micro, above
        self.step, self.seen, self.applied = 0, [], []

    def model(self):
        return Net().double()

    def blocks(self, model):
        return [model.middle]

    def frozen(self, model, batch):
        return {name: value for name, value in batch.items() if name != "x"} | {"z": model.frozen(batch["x"])}

    def loss(self, model, batch, draws):
        rows = len(batch["y"])
        failing = self.at and self.step == self.fails and rows > self.above and len(self.seen) == self.micro * rows
        if failing and self.at == "forward":
            self.fail()
        self.seen += batch["ids"].tolist()
        out = model(batch)
        if failing:
            (out if self.at == "late" else bare(model).hidden).register_hook(self.fail)
        error = ((out - batch["y"] + 0.1 * draws["noise"]) ** 2).sum(1)
        weight = batch["weight"] * batch["valid"]
        return (error * weight).sum(), weight.sum()

    def fail(self, grad=None):
        self.seen = []
        raise torch.OutOfMemoryError(TRIED)

    def gradients_ready(self, step, model):
        """The newest samples seen are those of the step; older ones, of an attempt that another rank has failed."""
        self.applied.append(self.seen[-self.job.batch.micro * self.job.batch.accumulate:])
        self.seen = []


class OnRankOne(Toy):
    """The float32 toy, in which more than four rows are too many for rank 1 from its sixth micro-batch on."""

    calls = 0

    def loss(self, model, batch, draws):
        self.calls += 1
        if self.calls > 5 and len(batch["x"]) > 4 and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError(TRIED)
        return super().loss(model, batch, draws)


class Deep(nn.Module):
    """A frozen layer of 2**17 numbers a row, and as many saved by each of 16 operations: 8 MiB a row in float32."""

    def __init__(self):
        super().__init__()
        self.frozen, self.scale, self.last = nn.Linear(4, 2**17), nn.Parameter(torch.ones(16)), nn.Linear(2**17, 2)
        self.frozen.requires_grad_(False)

    def forward(self, batch):
        x = batch["z"] if "z" in batch else self.frozen(batch["x"])
        for scale in self.scale:
            x = x * scale
        return self.last(x)


class Wide(Planted):
    """Fails on its own, where a GPU holds less than its micro-batch saves."""

    def model(self):
        return Deep()

    def blocks(self, model):
        return []


def pairs_of(steps, samples, micro, rank, world):
    """A rank's pairs: sample number i is the same for all cuts; the last micro-batch of a step may have fewer rows."""
    generator = torch.Generator().manual_seed(0)
    count = steps * samples * world
    data = {"x": torch.randn(count, 4, generator=generator).double(), "ids": torch.arange(count),
            "y": torch.randn(count, 2, generator=generator).double(), "valid": torch.ones(count).double(),
            "weight": torch.rand(count, generator=generator).double() ** 3 * 10 + 0.01}
    noise = torch.randn(count, 2, generator=generator).double()
    for step in range(steps):
        start = (step * world + rank) * samples
        for first in range(start, start + samples, micro):
            rows = slice(first, min(first + micro, start + samples))
            yield {name: value[rows] for name, value in data.items()}, {"noise": noise[rows]}
