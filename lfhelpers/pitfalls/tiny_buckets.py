"""Buckets made small so that the exchange starts early: each of them pays the link's latency."""

from __future__ import annotations

import torch
import torch.distributed as dist

from lfhelpers.levers.buckets_sim import DEFAULT, MB
from lfhelpers.levers.overlap import limits
from lfhelpers.pitfalls.base import About
from lfhelpers.pitfalls.checked import asked
from lfhelpers.recipe import recipe

ABOUT = About(
    "backward is longer than its kernels, and the link is never busy",
    "a message costs some time whatever it holds, and there are as many as buckets",
    "a small first bucket alone; measure what a message costs and let the sizes follow (lesson 04)",
    "messages in a step with 60 MiB of gradients")
TINY = "ddp.bucket_mb=0.1"


def break_it() -> float:
    """Messages with buckets of 0.1 MiB."""
    return float(_messages(*limits(recipe("competent", TINY).ddp)))


def detect(broken: bool = True) -> str:
    """What `check` says of the recipe on two ranks; empty for torch's own sizes."""
    return "; ".join(item.text for item in asked(recipe("competent", *([TINY] if broken else [])), 2))


def fix_it() -> float:
    """Messages with torch's own sizes."""
    return float(_messages(*DEFAULT))


def _messages(*sizes: float) -> int:
    """Buckets of 240 gradients of a quarter MiB, by torch's own assignment."""
    gradients = [torch.empty(MB // 16, device="meta") for _ in range(240)]
    return len(dist._compute_bucket_assignment_by_size(gradients, [int(size * MB) for size in sizes])[0])
