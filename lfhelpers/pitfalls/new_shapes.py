"""Lengths that never come back: the library plans each batch anew, and throws the plan away."""

from __future__ import annotations

import ctypes
import functools
import os
import random
import tempfile

import torch
from torch import nn

from lfhelpers.measure import isolated
from lfhelpers.pitfalls.base import About
from lfhelpers.train.sentinel import FIRST_SHAPES, Shapes

ABOUT = About(
    "some steps are longer by far, fewer and fewer of them, and each has a shape that was new",
    "cuDNN, oneDNN, Triton and CUDA graphs plan, tune or record once for every shape, a second each at worst",
    "pad to a few lengths: no more plans than these, for a known share of padding",
    "plans that oneDNN makes for 64 batches of a convolution")
BUCKET = 64


def break_it() -> float:
    """Plans where each batch keeps its length."""
    return float(_plans(padded=False))


def detect(broken: bool = True) -> str:
    """What the sentinel of every run says of these shapes; empty where few lengths take turns."""
    shapes = Shapes()
    return "".join(shapes.see({"x": torch.empty(4, 8, length)}) for length in _lengths(padded=not broken))


def fix_it() -> float:
    """Plans where lengths are padded to multiples of 64."""
    return float(_plans(padded=True))


def _lengths(padded: bool) -> list[int]:
    lengths = random.Random(0).sample(range(32, 256), FIRST_SHAPES)
    return [-(-length // BUCKET) * BUCKET for length in lengths] if padded else lengths


@functools.cache
def _plans(padded: bool) -> int:
    return isolated.call(_made, padded)


def _made(padded: bool) -> int:
    """In a process of its own, whose oneDNN has no plans yet: those it says it makes, which it writes past Python."""
    convolution = nn.Conv1d(8, 8, 3)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 1)
        with torch.no_grad(), torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
            for length in _lengths(padded):
                convolution(torch.ones(4, 8, length))
        ctypes.CDLL(None).fflush(None)
        said.seek(0)
        return sum(b"create:cache_miss" in line and b",convolution," in line for line in said)
