"""The gates for levers that compute the same thing: `exact` ones to the bit, `reordered` ones as near to the truth.

Two runs in bf16 that add in another order differ, and neither is right: comparing them with each other would only ask
whether the errors are equal. So both are compared with float64, and eager's own distance is the yardstick. A gradient
says whether one step is right; a short run says whether small differences stay small.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lfhelpers.train.precision import Precision
from lfhelpers.workloads.base import Batch, Workload

GRADIENT = 1.5
"""Most that a reordered lever's error against float64 may be, in units of eager's."""
STEP, END = 0.01, 0.015
"""Most that a step's loss may differ in the median, and the mean of the last steps, relative to eager's."""


class Band(NamedTuple):
    """How far a run's losses are from another's, as shares: the median step, and the mean of the last steps."""

    step: float
    end: float

    @property
    def passes(self) -> bool:
        """Whether both shares are within their limits."""
        return self.step < STEP and self.end < END


def gradients(workload: Workload, model: nn.Module, batch: Batch, draws: Batch,
              precision: Precision | None = None) -> Tensor:
    """All trained gradients of one batch in one vector, float64 [parameters] on the CPU.

    Without `precision` all is computed in float64, for which the model is changed in place.
    """
    if precision is None:
        model.double()
        for module in model.modules():  # a model may make fp32 numbers of its own, as those of a time
            if any(weight.is_floating_point() for weight in module.parameters(recurse=False)):
                module.register_forward_pre_hook(lambda _, args: tuple(map(_widened, args)))
        batch, draws = ({name: _widened(value) for name, value in part.items()} for part in (batch, draws))
    with precision.autocast() if precision else contextlib.nullcontext():
        loss, weight = workload.loss(model, batch, draws)
    (loss / weight).backward()
    return torch.cat([_with_data(module, parameter.grad).flatten().double().cpu() for module in model.modules()
                      for parameter in module.parameters(recurse=False) if parameter.grad is not None])


def error(found: Tensor, exact: Tensor) -> float:
    """The distance of `found` from `exact` as a share of the latter's length."""
    return ((found - exact).norm() / exact.norm()).item()


def band(ours: Tensor, eager: Tensor, last: int = 20) -> Band:
    """How far the losses of a run, [steps], are from eager's on the same data; `last`: steps that make the end."""
    apart = ((ours - eager).abs() / eager.abs()).median().item()
    return Band(apart, abs((ours[-last:].mean() / eager[-last:].mean()).item() - 1))


def _with_data(module: nn.Module, grad: Tensor) -> Tensor:
    """Of an embodiment layer's gradient the rows that the data has, so that recipes with and without others agree."""
    return grad[grad.flatten(1).any(1)] if getattr(module, "autocast_weights", False) else grad


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
