"""PowerSGD (Vogels et al. 2019): each matrix of gradients crosses as two thin factors, and what they miss comes later.

A gradient M [n, m] plus the error of the last step is multiplied by a factor Q [m, r], the products are added up over
the ranks and made orthonormal: P. Then Q = M^T P is averaged over the ranks, and P Q^T stands for the average of M. Q
is the next step's start (warm start), and M - P Q^T the error that is added to the next gradient. So (n + m) r numbers
cross twice, in two rounds, one after the other; the small products run beside backward on a GPU.

torch has this as a communication hook (ddp_comm_hooks.powerSGD_hook), with which a test compares. It isn't used, since
it waits for messages in the callbacks of other messages, which blocks where one thread delivers them all, lets the host
wait for the GPU in every bucket, and keeps its state by bucket: DDP lays its buckets out anew after the first step of
every process, and state of one layout crashes in another (pytorch issue 51427). Here state belongs to parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lfhelpers.errors import LfError
from lfhelpers.levers.comm_hooks import Exchange, Future, beside

WORTH = 2
"""A matrix is sent as factors where they have less than 1/WORTH of its numbers (torch's own default)."""
TINY = 1e-8
"""Added to the norm of columns, since rows that the data doesn't have give gradients of 0."""


class PowerSgd(Exchange):
    """Matrices as factors of low rank with error feedback, all else whole; `start` steps are exchanged exactly."""

    def __init__(self, world: int, rank: int, start: int) -> None:
        """rank: columns of the factors."""
        super().__init__(world)
        self._rank, self._start = rank, start
        self._steps = 0
        self._places: dict[Tensor, int] = {}
        self._errors: dict[int, Tensor] = {}
        self._factors: dict[int, Tensor] = {}

    def attach(self, model: nn.Module) -> None:
        """Register the hook. Raises LfError for a parameter without dimensions, which is no matrix."""
        for place, (name, parameter) in enumerate(model.named_parameters()):
            if not parameter.dim():
                raise LfError(f"ddp.hook='powersgd' can't take {name}, which has no dimension: give it the shape [1].")
            self._places[parameter] = place
        super().attach(model)

    def average(self, bucket: dist.GradBucket) -> Future:
        """Average one bucket over the ranks: DDP's communication hook."""
        exact = self._steps < self._start
        self._steps += bucket.is_last()
        if exact:
            return self.exactly(bucket)
        self.begins(bucket)
        grads = [(self._places[parameter], grad.view(len(grad), -1))
                 for parameter, grad in zip(bucket.parameters(), bucket.gradients(), strict=True)]
        large = sorted((grad for grad in grads if self._worth(grad[1])), key=lambda grad: grad[1].shape)
        small = [grad for _, grad in grads if not self._worth(grad)]
        return beside(bucket.buffer(), lambda: self._average(large, small))

    def state_dict(self) -> dict[str, Any]:
        """Steps done, and by the parameter's place: what was not sent yet, and the factor that comes next."""
        return {"steps": self._steps, "errors": dict(self._errors), "factors": dict(self._factors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._steps, self._errors, self._factors = state["steps"], dict(state["errors"]), dict(state["factors"])

    def common(self, state: dict[str, Any]) -> dict[str, Any]:
        """Factors are alike on all ranks; errors belong to a rank, and are forgotten."""
        return state | {"errors": {}}

    def _average(self, large: Sequence[tuple[int, Tensor]], small: Sequence[Tensor]) -> None:
        """In place; `large` holds (place, matrix), those of a shape one after the other."""
        matrices = [matrix for _, matrix in large]
        whole = [matrix + self._errors[place].to(matrix) if place in self._errors else matrix.clone()
                 for place, matrix in large]
        rest = torch.cat([grad.reshape(-1) for grad in small]).div_(self.world) if small else None
        sending = self.all_reduce(rest) if rest is not None else None
        if large:
            qs = orthonormal([self._factor(place, matrix) for place, matrix in large])
            ps = orthonormal(self._summed([matrix @ q for matrix, q in zip(whole, qs, strict=True)]))
            qs = self._summed([matrix.T @ p for matrix, p in zip(whole, ps, strict=True)])
            torch._foreach_div_(qs, self.world)
            torch._foreach_copy_(matrices, [p @ q.T for p, q in zip(ps, qs, strict=True)])
            torch._foreach_sub_(whole, matrices)
            for (place, _), error, q in zip(large, whole, qs, strict=True):
                self._errors[place], self._factors[place] = error, q.clone()  # q is a part of what has been sent
        if rest is not None and sending is not None:
            sending.wait()
            parts = rest.split([grad.numel() for grad in small])
            torch._foreach_copy_(list(small), [part.view_as(grad) for part, grad in zip(parts, small, strict=True)])

    def _summed(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Sums over the ranks, in one message."""
        flat = torch.cat([part.reshape(-1) for part in parts])
        self.all_reduce(flat).wait()
        return [sent.view_as(part) for sent, part in zip(flat.split([p.numel() for p in parts]), parts, strict=True)]

    def _factor(self, place: int, matrix: Tensor) -> Tensor:
        """The last step's Q; at first normal numbers, drawn from the place alone and so alike on all ranks."""
        if place in self._factors:
            return self._factors[place].to(matrix)
        drawn = torch.randn(matrix.shape[1], self._columns(matrix), generator=torch.Generator().manual_seed(place))
        return drawn.to(matrix)

    def _columns(self, matrix: Tensor) -> int:
        return min(*matrix.shape, self._rank)

    def _worth(self, matrix: Tensor) -> bool:
        return sum(matrix.shape) * self._columns(matrix) * WORTH < matrix.numel()


def orthonormal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """The matrices with orthonormal columns, by Gram-Schmidt; neighbours of one shape are done together."""
    done: list[Tensor] = []
    while len(done) < len(matrices):
        shape = matrices[len(done)].shape
        same = next((place for place in range(len(done), len(matrices)) if matrices[place].shape != shape),
                    len(matrices))
        done += _orthonormal(torch.stack(list(matrices[len(done):same]))).unbind()
    return done


def _orthonormal(stacked: Tensor) -> Tensor:
    """In place, [matrices, n, r]."""
    for column in range(stacked.shape[2]):
        own, rest = stacked[:, :, column:column + 1], stacked[:, :, column + 1:]
        own /= own.norm(dim=1, keepdim=True) + TINY
        rest -= (own * rest).sum(1, keepdim=True) * own
    return stacked
