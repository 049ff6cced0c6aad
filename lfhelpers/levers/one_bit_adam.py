"""1-bit Adam's exchange (Tang et al. 2021): after a warm-up, momentum crosses as its signs and a scale for each block.

AdamW's second moment settles early. So the first steps are exact; then it is frozen, and each rank adds its own
gradient to the shared momentum and sends only the signs of the result, eight to a byte, with the mean magnitude of each
block of 256. What signs leave out is added to the next step's momentum before it is signed (error feedback; Karimireddy
et al. 2019 show that it then converges as if nothing were left out).

Where the bytes go, for N numbers and n ranks: every rank owns 1/n of them. It gets its share of all ranks' signs
(all-to-all), averages, signs the average, again with error feedback, and hands it to everyone (all-gather): twice
(n - 1) / n of N/8 bytes of signs and N/64 bytes of scales, 1.125 bits a number where an fp32 all-reduce takes 32. The
warm-up's steps are sent whole, so a run that warms up for a fifth of its steps sends no less than a fifth.

The exchange lies in the update, after backward, and hides behind nothing. Where the frozen second moment is 0 the
gradient was 0 all along (rows that the data doesn't have), and the update stays 0: a sign would be divided by eps.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lfhelpers.levers.comm_hooks import Exchange, Future, there

BLOCK = 256
"""Numbers that share a scale; each parameter begins a new block."""


class OneBit(Exchange):
    """Sends buckets whole while `warm`, and nothing in backward after that: the optimizer then calls `mean`."""

    def __init__(self, world: int, rank: int, warmup: int) -> None:
        """warmup: steps that are exchanged exactly."""
        super().__init__(world)
        self.warmup = warmup
        self.steps = 0
        """Updates that the optimizer has done."""
        self._rank = rank
        self._left_out: tuple[Tensor, Tensor] | None = None

    @property
    def warm(self) -> bool:
        """Whether the present step is exchanged exactly."""
        return self.steps < self.warmup

    def average(self, bucket: dist.GradBucket) -> Future:
        """DDP's communication hook: the average while warm, afterwards this rank's own gradients."""
        if self.warm:
            return self.exactly(bucket)
        self.begins(bucket)
        return there(bucket.buffer())

    def mean(self, values: Tensor, live: Tensor, bad: Tensor) -> Tensor:
        """The mean over the ranks of float32 [size] values, by signs; 0 where not `live`.

        size: a multiple of BLOCK x ranks. bad: 0-dim; where it is 1, what was left out so far stays as it is.
        """
        share = len(values) // self.world
        own = slice(self._rank * share, (self._rank + 1) * share)
        kept = self._left_out or (torch.zeros_like(values), torch.zeros_like(values[own]))
        mine, ours = (part.to(values.device) for part in kept)  # those of a checkpoint lie on the CPU
        sent, left = signed(values + mine, live)
        got = self._to_owners(sent)
        total = torch.stack([unsigned(message, live[own]) for message in got]).mean(0)
        shared, left_of_ours = signed(total + ours, live[own])
        result = torch.cat([unsigned(message, live[index * share:(index + 1) * share])
                            for index, message in enumerate(self._to_all(shared))])
        self._left_out = torch.where(bad > 0, mine, left), torch.where(bad > 0, ours, left_of_ours)
        return result

    def mean_of(self, number: Tensor) -> Tensor:
        """The mean over the ranks of a 0-dim tensor."""
        number = number / self.world
        self.all_reduce(number).wait()
        return number

    def state_dict(self) -> dict[str, Any]:
        """Updates done, and what signs have left out so far: of this rank's momentum, and of its share's average."""
        mine, ours = self._left_out or (None, None)
        return {"steps": self.steps, "mine": mine, "ours": ours}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.steps = state["steps"]
        self._left_out = None if state["mine"] is None else (state["mine"], state["ours"])

    def common(self, state: dict[str, Any]) -> dict[str, Any]:
        """What was left out belongs to a rank, and is forgotten."""
        return {"steps": state["steps"], "mine": None, "ours": None}

    def _to_owners(self, packed: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Send each rank its share; what all ranks have sent this one."""
        sent = torch.cat([part.view(self.world, -1) for part in _bytes(packed)], dim=1)
        got = torch.empty_like(sent)
        self.count(sent.nbytes)
        dist.all_to_all_single(got, sent)
        return [_split(message) for message in got]

    def _to_all(self, packed: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Every rank's share, in the order of the ranks."""
        sent = torch.cat(_bytes(packed))
        got = torch.empty(self.world, len(sent), dtype=torch.uint8, device=sent.device)
        self.count(got.nbytes)
        dist.all_gather(list(got), sent)
        return [_split(message) for message in got]


def signed(values: Tensor, live: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """((signs uint8 [size / 8], scales float32 [size / BLOCK]), what they leave out float32 [size]).

    A block's scale is the mean magnitude of its live numbers, which leaves the least out.
    """
    values = values * live
    counts = live.view(-1, BLOCK).sum(1).clamp(min=1)
    packed = pack(values >= 0), values.abs().view(-1, BLOCK).sum(1) / counts
    return packed, values - unsigned(packed, live)


def unsigned(packed: tuple[Tensor, Tensor], live: Tensor) -> Tensor:
    """Signs times scales, float32 [size]; 0 where not live."""
    signs, scales = packed
    numbers = unpack(signs).float().mul_(2).sub_(1).view(-1, BLOCK) * scales.view(-1, 1)
    return numbers.view(-1) * live


def pack(flags: Tensor) -> Tensor:
    """bool [size] as bits, uint8 [size / 8]; the first flag is the lowest bit."""
    return (flags.view(-1, 8) * _weights(flags)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor) -> Tensor:
    """What `pack` was given, bool [8 x len]."""
    return (packed.view(-1, 1) & _weights(packed) > 0).view(-1)


def _weights(like: Tensor) -> Tensor:
    return 2 ** torch.arange(8, dtype=torch.uint8, device=like.device)


def _bytes(packed: tuple[Tensor, Tensor]) -> list[Tensor]:
    return [part.view(torch.uint8) for part in packed]


def _split(message: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 [bytes] as (signs, scales): a block has BLOCK / 8 bytes of signs and 4 of its scale."""
    signs = len(message) * BLOCK // (BLOCK + 32)
    return message[:signs], message[signs:].clone().view(torch.float32)  # a copy, since a view must be aligned
