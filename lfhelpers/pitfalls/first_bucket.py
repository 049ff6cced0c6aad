"""bucket_cap_mb=25 written down, since it is the default: the first exchange then starts 25 times later."""

from __future__ import annotations

import torch
import torch.distributed as dist

from lfhelpers.levers.buckets_sim import DEFAULT, FIRST_MB, MB
from lfhelpers.pitfalls.base import About

ABOUT = About(
    "communication begins late in backward, and its end is not hidden",
    "without an argument DDP's first bucket is 1 MiB and the others 25; given explicitly, 25 holds for the first too",
    "leave it out, or give the sizes one by one (ddp.bucket_list_mb)",
    "gradients that must be ready before the first exchange starts [MiB]")


def break_it() -> float:
    """MiB of the first bucket with an explicit 25."""
    return _first(25.0)


def detect(broken: bool = True) -> str:
    """What the bucket plan says; empty for a small first bucket."""
    first = _first(25.0) if broken else fix_it()
    return f"the first of the buckets holds {first:.0f} MiB, so the exchange starts late" if first > FIRST_MB else ""


def fix_it() -> float:
    """MiB of the first bucket by torch's own default."""
    return _first(*DEFAULT)


def _first(*limits: float) -> float:
    """MiB in the first bucket of 60 gradients of 1 MiB, by torch's own assignment."""
    gradients = [torch.empty(MB // 4, device="meta") for _ in range(60)]
    buckets = dist._compute_bucket_assignment_by_size(gradients, [int(limit * MB) for limit in limits])[0]
    return sum(gradients[place].nbytes for place in buckets[0]) / MB
