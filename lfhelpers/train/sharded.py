"""ZeRO stage 1 (Rajbhandari et al. 2020): each rank updates its n-th of every tensor and keeps those states alone.

A rank's share of a tensor is a view, the rank's n-th of it in memory. Gradients are reduce-scattered where backward
leaves them, so that each rank holds the average in its share (half of an all-reduce); the optimizer updates the shares;
the new weights are gathered where the model has them (the other half). Nothing is copied on either way. The same bytes
cross as without, 1/n of the states' memory is left and 1/n of the update's time, and weights travel group by group
beside the update of the groups that follow. What can't be cut into n aligned parts, a small bias, say, is averaged and
updated by every rank, as without.

Every number is updated from the same gradient by the same operations. Only the norm's sum is in another order, so two
ranks are equal to the unsharded run to the last bit while nothing is clipped, and reordered where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lfhelpers.levers.comm_hooks import Exchange
from lfhelpers.levers.in_place import InPlace, average, gather, gradients, scatter
from lfhelpers.train.adamw import total_norm
from lfhelpers.train.ranks import Ranks

ALIGNED = 64
"""Bytes at whose multiples every share begins and ends: the widest vector of a CPU, so that no number of a share is
computed in another way than in the whole tensor, and enough for what kernels of GPUs load at once."""


class Shards(Exchange):
    """This rank's shares of the trained parameters, and the exchange that goes with them."""

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
        """All trained parameters, in the same order on every rank."""
        super().__init__(ranks.world)
        self._ranks = ranks
        self._parameters = list(parameters)
        self._cut = {parameter for parameter in parameters
                     if parameter.is_contiguous() and not parameter.nbytes % (ALIGNED * ranks.world)}
        self.mine = [nn.Parameter(self._part(parameter.data)) if parameter in self._cut else parameter
                     for parameter in parameters]
        """What the optimizer updates, in the order of the parameters: shares, or whole ones that can't be cut."""
        self._whole = dict(zip(self.mine, self._parameters, strict=True))
        self._works: list[Any] = []
        self._silent = False

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """For the block, norms are of this rank's shares, and weights stay where they were updated."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def attach(self, model: nn.Module) -> None:
        """Take over the exchange of a model that levers.in_place wraps."""
        super().attach(model)
        assert isinstance(model, InPlace), "overlap.wrap gives it where the optimizer is sharded"
        model.send = self.send

    def masters(self, masters: Sequence[tuple[nn.Parameter, Tensor]]) -> list[tuple[nn.Parameter, Tensor]]:
        """This rank's shares of fp32 masters, with what `mine` has in place of their parameters."""
        held = {id(parameter): master for parameter, master in masters}
        return [(own, self._part(held[id(whole)]).clone() if whole in self._cut else held[id(whole)])
                for own, whole in self._whole.items() if id(whole) in held]

    def send(self, parameters: Sequence[nn.Parameter]) -> list[Any]:
        """Start to average gradients of one dtype, each rank's share there; what is returned is waited for."""
        cut = gradients(parameter for parameter in parameters if parameter in self._cut)
        rest = gradients(parameter for parameter in parameters if parameter not in self._cut)
        return [*([scatter(cut)] if cut else []), *([average(rest)] if rest else [])]

    def take(self) -> None:
        """Before an update: give each share its part of the gradient."""
        for own, whole in self._whole.items():
            if whole in self._cut:
                own.grad = None if whole.grad is None else self._part(whole.grad)

    def release(self) -> None:
        """After an update: forget the shares' gradients, whose memory is the whole ones'."""
        for own, whole in self._whole.items():
            if whole in self._cut:
                own.grad = None

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all gradients from the norm of this rank's, 0-dim; what every rank has is counted once."""
        if self._silent:
            return own
        everyones = gradients(parameter for parameter in self._parameters if parameter not in self._cut)
        shared = total_norm(everyones) ** 2 if everyones else torch.zeros_like(own)
        total = own**2 - shared
        dist.all_reduce(total)
        return (total + shared).sqrt()

    def spread(self, updated: Sequence[nn.Parameter]) -> None:
        """Start to hand on those of `mine` that have been updated; `arrived` ends it."""
        for dtype in dict.fromkeys(own.dtype for own in updated):
            changed = [self._whole[own] for own in updated if own.dtype == dtype]
            weights = [parameter.data for parameter in changed if parameter in self._cut]
            if weights and not self._silent:
                self._works.append(gather(weights))

    def arrived(self) -> None:
        """Let what follows wait for all weights that are on their way."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state that an unsharded optimizer would have, on rank 0, on the CPU; every rank takes part."""
        return _changed(state, lambda place, value: self._gathered(self._parameters[place], value))

    def share(self, state: dict[str, Any]) -> dict[str, Any]:
        """This rank's part of a whole state."""
        def own(place: int, value: Tensor) -> Tensor:
            return self._part(value) if self._parameters[place] in self._cut and value.ndim else value

        return _changed(state, own)

    def _part(self, tensor: Tensor) -> Tensor:
        """This rank's share of a contiguous tensor, a view."""
        return tensor.view(self.world, -1)[self._ranks.rank]

    def _gathered(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """All ranks' shares of a state's tensor in the parameter's shape, on rank 0; elsewhere what was given."""
        if parameter not in self._cut or not value.ndim:
            return value.cpu() if self._ranks.first else value
        flat = value.new_empty(parameter.numel())
        dist.all_gather(list(flat.chunk(self.world)), value)
        return flat.view(parameter.shape).cpu() if self._ranks.first else value


def _changed(state: dict[str, Any], change: Callable[[int, Tensor], Tensor]) -> dict[str, Any]:
    """An optimizer's state with change(place of the parameter, tensor) for each tensor, in order."""
    if "masters" in state:
        return {"masters": [change(place, master) for place, master in enumerate(state["masters"])],
                "moments": [(change(place, first), change(place, second))
                            for place, (first, second) in enumerate(state["moments"])]}
    rows = {place: {name: change(place, value) for name, value in row.items()} for place, row in state["state"].items()}
    return {"state": rows, "param_groups": state["param_groups"]}
