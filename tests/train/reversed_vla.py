"""`vla` over each batch in reverse: the same numbers summed in another order, so that only rounding can differ."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.workload import Vla


class ReversedVla(Vla):
    """The control of every gate for reordered arithmetic."""

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return super().loss(model, *({name: value.flip(0) for name, value in part.items()} for part in (batch, draws)))
