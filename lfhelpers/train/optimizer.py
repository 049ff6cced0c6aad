"""AdamW with clipping, a schedule that counts applied steps only, and two ways of applying an update.

Gradients arrive unnormalised: the backward pass saw the sum of losses, and the true divisor (the loss weight over all
micro-batches and ranks) is known only afterwards. So normalising and clipping are one factor. The fused path hands that
factor and the verdict 'not finite, skip' to the fused kernel, which reads them on the device: no pass over the
gradients and no wait. The unfused path multiplies the gradients and asks the host, as published loops do. With bf16
weights the kernel is our own (train.adamw).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lfhelpers.errors import LfError
from lfhelpers.levers.comm_hooks import Exchange
from lfhelpers.levers.in_place import gradients
from lfhelpers.levers.one_bit_adam import OneBit
from lfhelpers.recipe import OptimizerFields, Recipe
from lfhelpers.train.adamw import MasterAdamW, total_norm
from lfhelpers.train.one_bit import OneBitAdamW
from lfhelpers.train.sharded import Shards


def learning_rates(fields: OptimizerFields, peak: float, steps: int) -> Tensor:
    """The learning rate of each applied step, float32 [steps + 1] (the last one is never used up)."""
    warmup = round(fields.warmup * steps)
    step = torch.arange(steps + 1, dtype=torch.float64)
    rise = ((step + 1) / (warmup + 1)).clamp(max=1)
    done = ((step - warmup) / max(1, steps - warmup)).clamp(0, 1)
    fall = 0.5 * (1 + torch.cos(math.pi * done)) if fields.schedule == "cosine" else 1.0
    return (peak * rise * fall).float()


class Optimizer:
    """Owns unscale -> normalise and clip -> step -> scaler update -> zero, once an optimizer step."""

    def __init__(self, job: Recipe, model: nn.Module, peak_lr: float, scaler: torch.amp.GradScaler,
                 keep_grads: bool = False, masters: Sequence[tuple[nn.Parameter, Tensor]] | None = None,
                 exchange: Exchange | None = None) -> None:
        """`keep_grads` zeroes gradients in place, where a CUDA graph adds to them.

        masters: of the parameters that adamw.store_in_bf16 has made bf16; None where weights are fp32.
        exchange: how gradients cross, which matters to 1-bit Adam and where each rank updates a share alone.
        """
        fields = job.optimizer
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        device = self.parameters[0].device
        self._rates = learning_rates(fields, peak_lr, job.steps).to(device)
        self._clip = fields.clip_norm if fields.clip_norm > 0 else math.inf
        self._scaler = scaler
        self.keeps_grads = keep_grads
        self.fused = fields.fused
        self.applied = torch.zeros((), dtype=torch.int64, device=device)
        self._shards = exchange if isinstance(exchange, Shards) else None
        self._owned = self._shards.mine if self._shards else self.parameters
        if self._shards and masters is not None:
            masters = self._shards.masters(masters)
        self.adamw: Any = _adamw(job, self._owned, self._rates[0], masters, exchange)

    def update(self, normaliser: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Apply one step to gradients that are to be multiplied by `normaliser` (0-dim).

        Returns the true gradient norm, whether the step was skipped (0 or 1), and the learning rate: 0-dim tensors.
        A step whose gradients are not all finite is skipped: weights, moments and schedule stay as they were.
        """
        # index_select, since indexing with a tensor would read the index back to the host
        rate = self._rates.index_select(0, self.applied.clamp(max=len(self._rates) - 1).view(1)).view(())
        if self._shards:
            self._shards.take()
        if self._scaler.is_enabled():
            self._scaler.unscale_(self.adamw)
        grads = gradients(self._owned)
        norm = self.adamw.norm() if isinstance(self.adamw, MasterAdamW) else total_norm(grads)
        norm = (self._shards.norm(norm) if self._shards else norm) * normaliser
        bad = (~torch.isfinite(norm)).float()
        factor = normaliser * (self._clip / (norm + 1e-6)).clamp(max=1.0)
        if self._scaler.is_enabled():
            self._scaled_step(grads, factor, rate)
        elif isinstance(self.adamw, MasterAdamW):
            self.adamw.step(factor, bad, rate, self.applied, self._shards.spread if self._shards else None)
        elif self.fused:
            self._fused_step(factor, bad, rate)
        else:
            self._unfused_step(grads, factor, bad, rate)
        self.applied += (1 - bad).long()
        self._zero()
        if self._shards:
            if not isinstance(self.adamw, MasterAdamW):
                self._shards.spread(self._owned)
            self._shards.arrived()
        return norm, bad, rate

    def drop(self) -> tuple[Tensor, Tensor, Tensor]:
        """Zero the gradients and change nothing else; returns what `update` does, as of a skipped step."""
        self._zero()
        nothing = torch.zeros((), device=self.applied.device)
        return nothing, nothing + 1, nothing

    def _zero(self) -> None:
        if self._shards:
            self._shards.release()
        zero(self.parameters, in_place=self.keeps_grads)

    def _fused_step(self, factor: Tensor, bad: Tensor, rate: Tensor) -> None:
        """The kernel divides by grad_scale and leaves everything alone where found_inf is 1 (torch.optim.AdamW)."""
        self._set_rate(rate)
        self.adamw.grad_scale, self.adamw.found_inf = torch.where(bad > 0, 1.0, 1 / factor).float(), bad
        self.adamw.step()
        del self.adamw.grad_scale, self.adamw.found_inf

    def _unfused_step(self, grads: list[Tensor], factor: Tensor, bad: Tensor, rate: Tensor) -> None:
        if bad.item():
            return
        torch._foreach_mul_(grads, factor)
        self._set_rate(rate.item())
        self.adamw.step()

    def _scaled_step(self, grads: list[Tensor], factor: Tensor, rate: Tensor) -> None:
        """fp16: the scaler has unscaled the gradients and skips the step itself where one overflowed."""
        torch._foreach_mul_(grads, factor)
        self._set_rate(rate if self.fused else rate.item())
        self._scaler.step(self.adamw)
        self._scaler.update()

    def _set_rate(self, rate: Tensor | float) -> None:
        for group in self.adamw.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state, the count of applied steps and the scaler's state; where ranks own shares, all take part.

        It is then whole on rank 0 alone, and the same whether it was sharded or not.
        """
        state = self.adamw.state_dict()
        state = self._shards.whole(state) if self._shards else state
        return {"adamw": state, "applied": self.applied, "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`'s value."""
        self.adamw.load_state_dict(self._shards.share(state["adamw"]) if self._shards else state["adamw"])
        if self.fused and not isinstance(self.adamw, MasterAdamW):
            for group in self.adamw.param_groups:  # a learning rate left on the CPU would cost a wait in every step
                group["lr"] = self._rates[0].clone()
        self.applied.copy_(state["applied"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])


def zero(parameters: Sequence[nn.Parameter], in_place: bool) -> None:
    """Drop the gradients, or set them to 0 where they are."""
    if not in_place:
        for parameter in parameters:
            parameter.grad = None
    elif held := gradients(parameters):
        torch._foreach_zero_(held)


def _adamw(job: Recipe, parameters: list[nn.Parameter], rate: Tensor,
           masters: Sequence[tuple[nn.Parameter, Tensor]] | None, exchange: Exchange | None) -> Any:
    """The optimizer that the recipe names. Raises LfError where it isn't installed."""
    fields = job.optimizer
    if isinstance(exchange, OneBit):
        return OneBitAdamW(parameters, masters or (), fields, exchange)
    if masters is not None:
        return MasterAdamW(parameters, masters, fields)
    options: dict[str, Any] = {"betas": fields.betas, "eps": fields.eps, "weight_decay": fields.weight_decay}
    if fields.states == "int8":
        try:
            from torchao.optim import AdamW8bit
        except ImportError as error:
            raise LfError("optimizer.states='int8' needs torchao: pip install torchao, or take 'fp32'.") from error
        return AdamW8bit(parameters, lr=float(rate), **options)
    if not fields.fused:
        return torch.optim.AdamW(parameters, lr=float(rate), foreach=fields.foreach, **options)
    captured = job.graph.scope == "step" and rate.is_cuda
    return torch.optim.AdamW(parameters, lr=rate.clone(), fused=True, capturable=captured, **options)
