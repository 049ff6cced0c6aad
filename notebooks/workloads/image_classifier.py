"""An image classifier as a workload: which way do the stripes run? A residual network on JPEGs that it draws itself."""
import io
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

SIZES = {"tiny": (16, 16, 2), "full": (64, 192, 12)}  # pixels, channels, blocks
CLASSES = 8


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1), nn.GELU(),
                                  nn.Conv2d(width, width, 1))

    def forward(self, x):
        return x + self.body(x)


class ImageClassifier:
    samples = 2048

    def __init__(self, recipe):
        self.pixels, self.width, self.depth = SIZES[recipe.workload.size]
        self.fields = SimpleNamespace(images=("jpg",), size=self.pixels, others=("label",))

    def generate(self, index):  # one sample as files, packed into shards before the first run
        random, label, file = np.random.default_rng(index), index % CLASSES, io.BytesIO()
        y, x = np.mgrid[:96, :96] / 96
        waves = np.sin(40 * (x * np.cos(np.pi * label / CLASSES) + y * np.sin(np.pi * label / CLASSES)))[..., None]
        noisy = 127 + 60 * (waves + random.normal(0, 0.8, (96, 96, 3)))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG")
        return {"jpg": file.getvalue(), "label": bytes([label])}

    def sample(self, members):  # tensors of one sample, beside its image
        return {"label": torch.tensor(members["label"][0])}

    def model(self):
        body = nn.Sequential(*(Block(self.width) for _ in range(self.depth)))
        return nn.Sequential(nn.Conv2d(3, self.width, 4, 4), body, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                             nn.Linear(self.width, CLASSES))

    def loss(self, model, batch, draws):  # a sum and its weight, so that parts of a batch add up
        images = batch["images"][:, 0]  # uint8 [B, S, S, 3], or float [B, 3, S, S] from an engine that normalises
        images = images if images.is_floating_point() else images.permute(0, 3, 1, 2) / 127.5 - 1
        losses = F.cross_entropy(model(images).float(), batch["label"], reduction="none")
        return (losses * batch["valid"]).sum(), batch["valid"].sum()

    def flops_per_sample(self):  # of forward and backward
        return 6.0 * self.depth * 10 * self.width**2 * (self.pixels // 4) ** 2
