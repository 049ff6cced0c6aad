"""Gated FFNs with both first weights as one, and the kernel that the recipe asks for behind them (`compile.ffn`).

One matrix product of twice the width replaces two, forward and for the gradient of x, where eager adds two results up.
What follows is the operator of gated_ffn_op, which keeps only that product's output for backward. Checkpoints keep the
names gate, up and down; the optimizer sees one matrix instead of two, so its state belongs to runs that fuse. The price
of a kernel of one's own is that it has to be proven right on each new machine, and that the next compiler may overtake
it: so `auto` measures once per shape, and may say that torch.compile is faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lfhelpers.levers import gated_ffn_choice
from lfhelpers.levers.gated_ffn_op import gated, obstacle

MARK = "swiglu"
"""What a module's attribute `fusible` says, if it is down(silu(gate(x)) * up(x)) of three nn.Linear without biases."""
NEXT = {"cuda": "triton", "triton": "torch"}


class FusedFfn(nn.Module):
    """down(silu(gate(x)) * up(x)), [..., width] to the same, from one weight `into` [2 * hidden, width]."""

    def __init__(self, plain: Any, kernel: str) -> None:
        """The weights are copied from `plain`, a module that carries MARK; kernel: torch, triton, cuda or auto."""
        super().__init__()
        self.kernel = kernel
        gate, up = plain.gate.weight, plain.up.weight
        self.into = nn.Linear(gate.shape[1], 2 * gate.shape[0], bias=False, device="meta")
        self.into.weight = nn.Parameter(torch.cat([gate.detach(), up.detach()]), requires_grad=gate.requires_grad)
        self.down = plain.down
        self.train(plain.training)
        self.register_state_dict_post_hook(_apart)
        self.register_load_state_dict_pre_hook(_together)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        packed, weight = self.into(x), self.down.weight
        kernel = self.kernel
        if kernel == "auto":
            kernel = gated_ffn_choice.choose(packed.numel() // packed.shape[-1], *weight.shape, packed.dtype,
                                             packed.requires_grad, packed.device.type, self.training)
        if kernel != "compile":
            return gated(packed, weight, kernel)
        return gated(packed, weight, "torch") if torch.compiler.is_compiling() else _compiled()(packed, weight, "torch")


def fuse(model: nn.Module, kernel: str) -> list[str]:
    """Put FusedFfn in place of each module that carries MARK, on the model's device; returns their names.

    kernel: `off` does nothing; `torch`, `triton`, `cuda` or the next of them that works here, which is then said in a
    line, as is that the model has no such module; `auto`: see gated_ffn_choice. Must run before anything keeps the
    model's parameters.
    """
    if kernel == "off":
        return []
    found = {name: module for name, module in model.named_modules() if getattr(module, "fusible", None) == MARK}
    if not found:
        print(f"ffn: the model has no gated FFN that compile.ffn='{kernel}' could fuse", flush=True)
        return []
    device = next(iter(found.values())).down.weight.device
    kernel = kernel if kernel == "auto" else usable(kernel, device)
    for name, module in found.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, FusedFfn(module, kernel))
    return list(found)


def usable(kernel: str, device: torch.device) -> str:
    """The kernel, or the next one that works on the device: cuda, triton, torch; a line says which and why."""
    asked, why = kernel, None
    while (found := obstacle(kernel, device)) is not None:
        why, kernel = why or found, NEXT[kernel]
    if why is not None:
        print(f"ffn: {kernel} in place of {asked}: {why}", flush=True)
    return kernel


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(gated, dynamic=False)


def _apart(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    """In a state dict: copies of the one weight's halves, as the plain module names them and in its order.

    Copies, because safetensors refuses tensors that are a part of a larger one.
    """
    down = {name: state.pop(name) for name in list(state) if name.startswith(f"{prefix}down.")}
    gate, up = state.pop(f"{prefix}into.weight").chunk(2)
    state[f"{prefix}gate.weight"], state[f"{prefix}up.weight"] = gate.clone(), up.clone()
    state |= down


def _together(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Before loading: the two weights as one, where both are there; else they are reported as missing."""
    names = f"{prefix}gate.weight", f"{prefix}up.weight"
    if all(name in state for name in names):
        state[f"{prefix}into.weight"] = torch.cat([state.pop(name) for name in names])
