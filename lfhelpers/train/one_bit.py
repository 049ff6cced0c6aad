"""The optimizer of the pair that is 1-bit Adam: AdamW while it warms up, then signed momentum over a frozen variance.

levers.one_bit_adam says what crosses the link. After the warm-up the gradient norm that clips and is recorded is the
root mean square of the ranks' own norms: no rank knows the norm of the average, which is never above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lfhelpers.levers.one_bit_adam import BLOCK, OneBit
from lfhelpers.recipe import OptimizerFields
from lfhelpers.train.adamw import MasterAdamW


class OneBitAdamW(MasterAdamW):
    """MasterAdamW with its moments in two flat tensors, ready to be sent; each parameter begins a block."""

    def __init__(self, parameters: Sequence[nn.Parameter], masters: Sequence[tuple[nn.Parameter, Tensor]],
                 fields: OptimizerFields, exchange: OneBit) -> None:
        super().__init__(parameters, masters, fields)
        self._exchange = exchange
        blocks = [-(-master.numel() // BLOCK) for master in self.masters]
        whole = BLOCK * exchange.world
        size = -(-sum(blocks) * BLOCK // whole) * whole
        self._first, self._second = (torch.zeros(size, device=self.masters[0].device) for _ in range(2))
        self._blocks = blocks
        self.moments = list(zip(self._views(self._first), self._views(self._second), strict=True))

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The norm of the averaged gradient, or after the warm-up the root mean square of the ranks' norms."""
        norm = super().norm()
        return norm if self._exchange.warm else self._exchange.mean_of(norm**2).sqrt()

    @torch.no_grad()
    def step(self, factor: Tensor, bad: Tensor, rate: Tensor, applied: Tensor,
             done: Callable[[Sequence[nn.Parameter]], None] | None = None) -> None:
        """As MasterAdamW has it; after the warm-up gradients are this rank's own."""
        if self._exchange.warm:
            super().step(factor, bad, rate, applied, done)
        else:
            if self._exchange.steps == self._exchange.warmup:  # frozen as what AdamW would divide by from now on
                self._second /= 1 - self._fields.betas[1] ** applied.clamp(min=1).float()
            self._signed_step(factor, bad, rate, applied)
        self._exchange.steps += 1

    def _signed_step(self, factor: Tensor, bad: Tensor, rate: Tensor, applied: Tensor) -> None:
        beta1, fields, good = self._fields.betas[0], self._fields, 1 - bad
        mine = torch.zeros_like(self._first)
        for parameter, view in zip(self.parameters, self._views(mine), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        mine = torch.lerp(self._first, mine * factor, 1 - beta1)
        shared = self._exchange.mean(mine, self._second > 0, bad)
        torch.where(bad > 0, self._first, shared, out=self._first)
        change = self._first / (self._second.sqrt() + fields.eps) * (good * rate / (1 - beta1 ** (applied + 1).float()))
        torch._foreach_mul_(self.masters, 1 - good * rate * fields.weight_decay)
        torch._foreach_sub_(self.masters, self._views(change))
        torch._foreach_copy_([parameter.data for parameter in self.parameters], self.masters)

    def _views(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor's part of each parameter, in its shape."""
        parts = flat[:sum(self._blocks) * BLOCK].split([BLOCK * blocks for blocks in self._blocks])
        return [part[:master.numel()].view_as(master) for part, master in zip(parts, self.masters, strict=True)]
