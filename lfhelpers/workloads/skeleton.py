"""What is trained, for lfhelpers: replace each part by your own, and keep the shapes that the comments give.

    lfhelpers diagnose --workload my_workload.py:MyWorkload      where does a step's time go?
    lfhelpers ladder --workload my_workload.py:MyWorkload        which levers help, and is it still as good?
    lfhelpers tune mine --workload my_workload.py:MyWorkload     which settings are the best?
"""
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

WIDTH = 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.layer(self.norm(x)))


class MyWorkload:
    # Files of a sample. images are decoded for you to size x size pixels: batch["images"], uint8 [B, images, S, S, 3],
    # or float [B, images, 3, S, S] in -1..1 from an engine that normalises. others reach sample() as bytes.
    fields = SimpleNamespace(images=(), size=0, others=("f32",))
    samples = 1024  # how many generate() makes; leave both out where you have shards (`lfhelpers data pack`)

    def __init__(self, recipe):
        self.recipe = recipe  # recipe.workload.size and recipe.workload.options are yours to use

    def generate(self, index):
        """Sample `index` as files, by extension; called once each, before the first run."""
        return {"f32": np.random.default_rng(index).normal(size=WIDTH).astype("<f4").tobytes()}

    def sample(self, members):
        """Tensors of one sample, of the same shapes for all."""
        return {"x": torch.from_numpy(np.frombuffer(members["f32"], "<f4").copy())}

    def model(self):
        """Alike blocks in a list are found, compiled and checkpointed."""
        return nn.Sequential(nn.Sequential(*(Block() for _ in range(4))), nn.Linear(WIDTH, WIDTH))

    def draws(self, samples, generator):
        """All random numbers of the loss, [samples, ...] each; leave it out where there are none."""
        return {"noise": torch.randn(samples, WIDTH, generator=generator, device=generator.device)}

    def loss(self, model, batch, draws):
        """(sum, weight), 0-dim each; their ratio is the loss. A sample whose valid is 0 must add nothing."""
        error = (model(batch["x"] + 0.1 * draws["noise"]) - batch["x"]).float().square().mean(1)
        return (error * batch["valid"]).sum(), batch["valid"].sum()

    def flops_per_sample(self):
        """Of forward and backward: about 6 for each weight that a sample meets."""
        return 6.0 * 5 * WIDTH * WIDTH

    def default_lr(self):
        return 1e-3
