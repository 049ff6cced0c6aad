"""AdamW over bf16 weights with fp32 masters: no casts in forward, gradients of half the bytes, one pass for the update.

Under autocast every fp32 weight is cast to bf16 in each forward pass, and each gradient, which a bf16 matrix product
has made, is widened to fp32 and read twice more. Here the matrices that autocast would cast are bf16 in the model; the
optimizer owns their fp32 masters and writes both in one kernel: 28 bytes a parameter move instead of about 46. With one
micro-batch a step nothing is lost, since a bf16 product's gradient is bf16 anyway (Micikevicius et al. 2018, section
3.1); sums over micro-batches would be rounded, so the recipe refuses accumulation here.

The kernel is Triton on a GPU; on a CPU the same arithmetic is done by torch, parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lfhelpers.levers.in_place import gradients
from lfhelpers.recipe import OptimizerFields

GROUPS = 8
"""Into which an update is divided where something follows it group by group: the last one's follower is alone."""


def store_in_bf16(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """Make the trained weights that autocast would cast bf16, in place; returns each with its fp32 master.

    These are the parameters of nn.Linear, and of modules that say `autocast_weights = True`.
    """
    kept = []
    for module in model.modules():
        if isinstance(module, nn.Linear) or getattr(module, "autocast_weights", False):
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and parameter.dtype == torch.float32:
                    kept.append((parameter, parameter.data.clone()))
                    parameter.data = parameter.data.to(torch.bfloat16)
    return kept


def total_norm(grads: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, 0-dim, summed in fp32, or in their own dtype where that is wider."""
    low = any(grad.element_size() < 4 for grad in grads)  # torch's fast path has no dtype
    norms = torch._foreach_norm(list(grads), 2, **({"dtype": torch.float32} if low else {}))
    return torch.linalg.vector_norm(torch.stack(norms))


class MasterAdamW:
    """AdamW (Loshchilov and Hutter 2019) on fp32 masters, of all trained parameters of a model.

    A parameter that stayed fp32 is its own master. Gradients are read as they are and scaled on the way.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], masters: Sequence[tuple[nn.Parameter, Tensor]],
                 fields: OptimizerFields) -> None:
        held = {id(parameter): master for parameter, master in masters}
        self.parameters = list(parameters)
        self.masters = [held.get(id(parameter), parameter.data) for parameter in parameters]
        self.moments = [(torch.zeros_like(master), torch.zeros_like(master)) for master in self.masters]
        self._fields = fields
        self._tables: list[tuple[_Table, bool]] | None = None

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The 2-norm of all gradients together, 0-dim float32; comes before `step`, which uses what it looked up."""
        if not self.masters[0].is_cuda:
            return total_norm(gradients(self.parameters))
        from lfhelpers.train import adamw_kernel

        sums = []
        for table, low in self._kernels():
            table.look()
            sums.append(adamw_kernel.squares(table.addresses, table.summed, low))
        return torch.cat(sums).sum().sqrt()

    @torch.no_grad()
    def step(self, factor: Tensor, bad: Tensor, rate: Tensor, applied: Tensor,
             done: Callable[[Sequence[nn.Parameter]], None] | None = None) -> None:
        """One update with gradients x `factor`; nothing changes where `bad` is 1. All 0-dim tensors on the device.

        applied: updates done so far, int64. done: called for each of GROUPS groups of parameters once it has been
        updated, so that something can be done with it beside the update of the next.
        """
        (beta1, beta2), count = self._fields.betas, (applied + 1).float()
        scalars = torch.stack([factor.float(), 1 - bad, rate, rate / (1 - beta1**count), (1 - beta2**count).sqrt()])
        if scalars.is_cuda:
            from lfhelpers.train import adamw_kernel

            for table, low in self._kernels():
                for parameters, places in table.groups if done else [(table.parameters, table.updated)]:
                    adamw_kernel.update(table.addresses, places, scalars, self._fields, low)
                    if done:
                        done(parameters)
        else:
            self._plain(scalars)
            if done:
                done(self.parameters)

    def state_dict(self) -> dict[str, Any]:
        """Masters and both moments, in the order of the parameters."""
        return {"masters": self.masters, "moments": self.moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`'s value; the model's weights follow the masters."""
        for parameter, master, saved in zip(self.parameters, self.masters, state["masters"], strict=True):
            master.copy_(saved)
            parameter.data.copy_(master)
        for own, saved_pair in zip(self.moments, state["moments"], strict=True):
            for mine, value in zip(own, saved_pair, strict=True):
                mine.copy_(value)

    def _plain(self, scalars: Tensor) -> None:
        factor, good, rate, scaled_rate, root = scalars.unbind()
        if not good:
            return
        (beta1, beta2), fields = self._fields.betas, self._fields
        for parameter, master, (first, second) in zip(self.parameters, self.masters, self.moments, strict=True):
            if parameter.grad is None:
                continue
            grad = parameter.grad.float() * factor
            master.mul_(1 - rate * fields.weight_decay)
            first.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            master.sub_(scaled_rate * first / (second.sqrt() / root + fields.eps))
            if parameter.data_ptr() != master.data_ptr():
                parameter.data.copy_(master)

    def _kernels(self) -> list[tuple[_Table, bool]]:
        """The tables of the bf16 parameters and of the others, where there are any, and whether it is the former."""
        if self._tables is None:
            rows = [(parameter, master, *pair) for parameter, master, pair
                    in zip(self.parameters, self.masters, self.moments, strict=True)]
            split = [[row for row in rows if (row[0].dtype == torch.bfloat16) == low] for low in (True, False)]
            self._tables = [(_Table(rows), low) for rows, low in zip(split, (True, False), strict=True) if rows]
        return self._tables


class _Table:
    """Where the kernels find each parameter: addresses on the device, and which chunk belongs to which parameter."""

    def __init__(self, rows: Sequence[tuple[nn.Parameter, Tensor, Tensor, Tensor]]) -> None:
        device = rows[0][0].device
        self.parameters = [row[0] for row in rows]
        fixed = [[parameter.data_ptr(), *(tensor.data_ptr() for tensor in others), 0] for parameter, *others in rows]
        from lfhelpers.train import adamw_kernel

        counts = torch.tensor([parameter.numel() for parameter in self.parameters])
        self.updated = _places(counts, adamw_kernel.UPDATED).to(device)
        self.summed = _places(counts, adamw_kernel.SUMMED).to(device)
        self.groups = list(self._grouped(counts, adamw_kernel.UPDATED))
        """Parameters that follow each other, about a GROUPS-th of all numbers each, and their part of `updated`."""
        self._host = torch.tensor(fixed)
        self.addresses = self._host.to(device)
        # Copied from during every replay of a captured step, so it stays, page-locked, and is written only once.
        self._captured = self._host.pin_memory()

    def _grouped(self, counts: Tensor, chunk: int) -> Iterator[tuple[list[nn.Parameter], Tensor]]:
        number = (counts.cumsum(0) - counts) * GROUPS // counts.sum()
        chunks = (counts + chunk - 1) // chunk
        start = 0
        for group in number.unique().tolist():
            size = int(chunks[number == group].sum())
            members = [parameter for parameter, of in zip(self.parameters, number.tolist(), strict=True) if of == group]
            yield members, self.updated[start:start + size]
            start += size

    def look(self) -> None:
        """Take down where the gradients lie now; `addresses` is int64 [parameters, 5] as adamw_kernel has it."""
        grads = torch.tensor([parameter.grad.data_ptr() if parameter.grad is not None else 0
                              for parameter in self.parameters])
        if torch.cuda.is_current_stream_capturing():
            self._captured[:, 4] = grads
            self.addresses = self._captured.to(self.addresses.device, non_blocking=True)
        elif not torch.equal(grads, self._host[:, 4]):  # the allocator hands out the same blocks in most steps
            self._host[:, 4] = grads
            self.addresses = self._host.to(self.addresses.device)


def _places(counts: Tensor, chunk: int) -> Tensor:
    """int64 [chunks, 3]: parameter, number of the chunk in it, and how many numbers the parameter has."""
    chunks = (counts + chunk - 1) // chunk
    owner = torch.repeat_interleave(torch.arange(len(counts)), chunks)
    start = torch.arange(len(owner)) - (chunks.cumsum(0) - chunks)[owner]
    return torch.stack([owner, start, counts[owner]], dim=1)
