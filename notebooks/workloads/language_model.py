"""A small causal language model as a workload: it learns to add, from sums that are written on the fly."""
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

SIZES = {"tiny": (32, 2, 24), "full": (512, 8, 384)}  # width, blocks, characters
LETTERS = "0123456789+=;"


class Gpt(nn.Module):
    def __init__(self, width, depth, length):
        super().__init__()
        self.words, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.0, F.gelu,
                                                               batch_first=True, norm_first=True) for _ in range(depth))
        self.head = nn.Linear(width, len(LETTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens):  # int64 [B, T] to [B, T, letters]
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask, is_causal=True)
        return self.head(x)


class LanguageModel:
    samples = 4096

    def __init__(self, recipe):
        self.size = SIZES[recipe.workload.size]
        self.fields = SimpleNamespace(images=(), size=0, others=("txt",))

    def generate(self, index):  # one sample as files, packed into shards before the first run
        pairs = np.random.default_rng(index).integers(0, 100, (self.size[2], 2)).tolist()
        return {"txt": "".join(f"{a}+{b}={a + b};" for a, b in pairs)[:self.size[2] + 1].encode()}

    def sample(self, members):  # tensors of one sample
        return {"tokens": torch.tensor([LETTERS.index(letter) for letter in members["txt"].decode()])}

    def model(self):
        return Gpt(*self.size)

    def loss(self, model, batch, draws):  # a sum and its weight, so that parts of a batch add up
        given, wanted = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        losses = F.cross_entropy(model(given).float().transpose(1, 2), wanted, reduction="none")
        weight = batch["valid"][:, None].expand(wanted.shape)
        return (losses * weight).sum(), weight.sum()

    def flops_per_sample(self):  # of forward and backward
        width, depth, length = self.size
        return 6.0 * depth * (12 * width**2 + 2 * length * width) * length
