"""ZeRO stage 1 (Rajbhandari et al. 2020): each rank updates its share of the parameters and keeps their states alone.

DDP's hook brings a parameter's gradients to its owner only (half of an all-reduce), the owner updates it, and hands the
new weight to everyone (the other half): the same bytes, 1/n of the states' memory and of the update's time. What is
lost is overlap: weights travel after the update, where nothing hides them.

Whole parameters are owned, dealt out in their order to whoever has the least so far, so that each bucket has something
for everyone. That keeps states in their ordinary form: any AdamW here works on a share, and a checkpoint holds what an
unsharded run would write, for any number of ranks. The largest share sets the pace, and what is handed out: one
parameter of more than 1/n of all numbers costs more than it would in a flat partition.

Every number is updated from the same gradient by the same operations. Only the norm's sum is in another order, so two
ranks are equal to the unsharded run to the last bit while nothing is clipped, and reordered where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lfhelpers.errors import LfError
from lfhelpers.levers.comm_hooks import Exchange, Future, beside
from lfhelpers.train.ranks import Ranks


class Shards(Exchange):
    """Who owns which parameter, and the exchange that goes with it."""

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
        """All trained parameters, in the same order on every rank. Raises LfError for fewer of them than ranks."""
        super().__init__(ranks.world)
        self._ranks = ranks
        self._parameters = list(parameters)
        self.owners = _owners(parameters, ranks.world)
        self._owner: dict[Tensor, int] = dict(zip(parameters, self.owners, strict=True))
        self.mine = [parameter for parameter, owner in zip(parameters, self.owners, strict=True) if owner == ranks.rank]
        if len(parameters) < ranks.world:
            raise LfError(f"ddp.shard_optimizer: {len(parameters)} trained parameters can't be dealt out to "
                          f"{ranks.world} ranks; set ddp.shard_optimizer=false.")

    def average(self, bucket: dist.GradBucket) -> Future:
        """DDP's communication hook: this rank's own parameters get their average, the others stay as they are."""
        self.begins(bucket)
        owned: list[list[Tensor]] = [[] for _ in range(self.world)]
        for parameter, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            owned[self._owner[parameter]].append(grad)
        sizes = [sum(grad.numel() for grad in grads) for grads in owned]
        sent = torch.cat([grad.reshape(-1) for grads in owned for grad in grads]).div_(self.world)
        own, grads = sizes[self._ranks.rank], owned[self._ranks.rank]
        got = sent.new_empty(self.world, own)
        self.bytes_per_step += (len(sent) - own) * sent.element_size()

        sending = dist.all_to_all_single(got.view(-1), sent, [own] * self.world, sizes, async_op=True)

        def add() -> None:
            sending.wait()
            if grads:
                parts = got.sum(0).split([grad.numel() for grad in grads])
                torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)])

        return beside(bucket.buffer(), add, sent, got)

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all gradients from the norm of this rank's, 0-dim."""
        total = own**2
        dist.all_reduce(total)
        return total.sqrt()

    def spread(self) -> None:
        """Hand every parameter from its owner to all ranks, in one message for each dtype."""
        for dtype in dict.fromkeys(parameter.dtype for parameter in self._parameters):
            shares: list[list[Tensor]] = [[] for _ in range(self.world)]
            for parameter, owner in zip(self._parameters, self.owners, strict=True):
                if parameter.dtype == dtype:
                    shares[owner].append(parameter.data)
            sizes = [sum(weight.numel() for weight in share) for share in shares]
            own = self._parameters[0].new_empty(max(sizes), dtype=dtype)
            torch.cat([own[:0], *(weight.reshape(-1) for weight in shares[self._ranks.rank])],
                      out=own[:sizes[self._ranks.rank]])
            flat = own.new_empty(self.world, len(own))
            self.count(flat.nbytes)
            dist.all_gather(list(flat), own)
            for owner, (share, sent) in enumerate(zip(shares, flat, strict=True)):
                if owner != self._ranks.rank and share:
                    parts = sent[:sizes[owner]].split([weight.numel() for weight in share])
                    torch._foreach_copy_(share, [part.view_as(to) for part, to in zip(parts, share, strict=True)])

    def zero_others(self, set_to_none: bool) -> None:
        """Drop the gradients of the others' parameters, or set them to 0 in place."""
        others = [parameter for parameter, owner in self._owner.items() if owner != self._ranks.rank]
        grads = [parameter.grad for parameter in others if parameter.grad is not None]
        if not set_to_none and grads:
            torch._foreach_zero_(grads)
        elif set_to_none:
            for parameter in others:
                parameter.grad = None

    def whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state that an unsharded optimizer would have, on rank 0, on the CPU; every rank takes part."""
        rows = self._gathered(_rows(state, self._places()))
        places = range(len(self._parameters))
        if "masters" in state:
            return {"masters": [rows[place]["master"] for place in places if place in rows],
                    "moments": [(rows[place]["first"], rows[place]["second"]) for place in places if place in rows]}
        groups = [group | {"params": list(places)} for group in state["param_groups"]]
        return {"state": rows, "param_groups": groups}

    def share(self, state: dict[str, Any]) -> dict[str, Any]:
        """This rank's part of a whole state."""
        places = self._places()
        if "masters" in state:
            return {name: [state[name][place] for place in places] for name in ("masters", "moments")}
        kept = {index: state["state"][place] for index, place in enumerate(places) if place in state["state"]}
        groups = [group | {"params": list(range(len(places)))} for group in state["param_groups"]]
        return {"state": kept, "param_groups": groups}

    def _places(self) -> list[int]:
        return [place for place, owner in enumerate(self.owners) if owner == self._ranks.rank]

    def _gathered(self, rows: dict[int, dict[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
        """All ranks' rows on rank 0, tensor by tensor, so that no more than one is on its way; {} elsewhere."""
        forms = {place: [(name, value.shape, value.dtype) for name, value in row.items()]
                 for place, row in rows.items()}
        every = {place: form for of_rank in self._ranks.gather(forms) for place, form in of_rank.items()}
        whole: dict[int, dict[str, Tensor]] = {}
        for place in sorted(every):
            owner, row = self.owners[place], rows.get(place, {})
            for name, shape, dtype in every[place]:
                if owner and self._ranks.rank == owner:
                    dist.send(row[name].to(self._ranks.device), 0)
                elif owner and self._ranks.first:
                    row[name] = torch.empty(shape, dtype=dtype, device=self._ranks.device)
                    dist.recv(row[name], owner)
            if self._ranks.first:
                whole[place] = {name: value.cpu() for name, value in row.items()}
        return whole


def deal(sizes: Sequence[int], ranks: int) -> list[int]:
    """The owner of each size: in order, to the rank that has the least so far."""
    loads = [0] * ranks
    owners = []
    for size in sizes:
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += size
    return owners


def _owners(parameters: Sequence[nn.Parameter], ranks: int) -> list[int]:
    """The owner of each parameter; those of each dtype are dealt out by themselves, since they travel so."""
    owners = [0] * len(parameters)
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        places = [place for place, parameter in enumerate(parameters) if parameter.dtype == dtype]
        for place, owner in zip(places, deal([parameters[place].numel() for place in places], ranks), strict=True):
            owners[place] = owner
    return owners


def _rows(state: dict[str, Any], places: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """An optimizer's state by the place of each parameter among all."""
    if "masters" in state:
        return {place: {"master": master, "first": first, "second": second} for place, master, (first, second)
                in zip(places, state["masters"], state["moments"], strict=True)}
    return {places[index]: dict(row) for index, row in state["state"].items()}
