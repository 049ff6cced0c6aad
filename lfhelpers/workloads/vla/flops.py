"""FLOPs of one training sample in closed form, part by part, and what torch's counter misses on the CPU.

Convention: a multiply-add is 2 FLOPs; matrix products and attention only; causal attention counts the full square, as
torch's FlopCounterMode does; a layer whose input needs no gradient has no product for it; frozen layers are forward
only, unless gradients pass through them. Attention's backward counts the four products of the mathematics. Flash
kernels compute the scores a second time, and FlopCounterMode counts that fifth product: recomputation is no useful
work, so it is left out here (below 1 % of a step of the named recipes), and MFU is not flattered by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

from lfhelpers.recipe import WorkloadFields
from lfhelpers.workloads.vla.action import TIME_CHANNELS
from lfhelpers.workloads.vla.model import first_with_gradient, trained_layers
from lfhelpers.workloads.vla.sizes import Size
from lfhelpers.workloads.vla.vision import CHANNELS


@dataclass(frozen=True)
class Flops:
    """FLOPs of one sample, forward and backward apart."""

    forward: float = 0.0
    backward: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.forward + self.backward

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: int) -> Flops:
        return Flops(self.forward * times, self.backward * times)


def flops_per_sample(size: Size, fields: WorkloadFields) -> float:
    """Forward and backward FLOPs of one sample as the recipe trains it."""
    return sum(part.total for part in breakdown(size, fields).values())


def breakdown(size: Size, fields: WorkloadFields) -> dict[str, Flops]:
    """The same by part: vision (with the connector), decoder, logits, dit, embodiment."""
    return {
        "vision": _vision(size, fields),
        "decoder": _decoder(size, fields),
        "logits": _logits(size, fields),
        "dit": _dit(size),
        "embodiment": _embodiment(size),
    }


def register_missing_formulas() -> None:
    """Teach FlopCounterMode the CPU's flash attention, which it counts as 0; the same five products as on a GPU."""
    aten = torch.ops.aten
    for operator, formula in ((aten._scaled_dot_product_flash_attention_for_cpu, _attention_forward),
                              (aten._scaled_dot_product_flash_attention_for_cpu_backward, _attention_backward)):
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)


def _vision(size: Size, fields: WorkloadFields) -> Flops:
    vision, trained = size.vision, fields.tune_vision
    patches, width = vision.grid**2, vision.width
    layer = (_linear(patches, width, 4 * width + 2 * vision.ffn, trained, trained)
             + _attention(patches, patches, width, trained))
    tower = _linear(patches, CHANNELS * vision.patch**2, width, trained, False) + layer * vision.layers
    out = size.language.width
    connector = _linear(vision.tokens, 4 * width + out, out, trained, trained)
    return tower * vision.views + connector


def _decoder(size: Size, fields: WorkloadFields) -> Flops:
    """Frozen layers above something trained pass gradients on, and have no products for weights."""
    layers = size.language.layers
    first, trained = first_with_gradient(size, fields), layers - trained_layers(size, fields)
    return (_layer(size, fields, False, False) * first
            + _layer(size, fields, False, True) * (trained - first)
            + _layer(size, fields, True, True) * (layers - trained))


def _layer(size: Size, fields: WorkloadFields, trained: bool, passes: bool) -> Flops:
    language, tokens = size.language, _text_end(size, fields)
    queries, keys = (heads * language.head_dim for heads in (language.heads, language.kv_heads))
    outputs = 2 * queries + 2 * keys + 3 * language.ffn  # a trained norm stands before them: all inputs need gradients
    return _linear(tokens, language.width, outputs, trained, passes) + _attention(tokens, tokens, queries, passes)


def _logits(size: Size, fields: WorkloadFields) -> Flops:
    """The published waste counts too: it is what the machine computes."""
    if not (fields.compute_logits or fields.text_loss):
        return Flops()
    tokens = _text_end(size, fields) if fields.compute_logits else size.language.answer_tokens
    trained = fields.text_loss > 0
    passes = trained and first_with_gradient(size, fields) < size.language.layers
    return _linear(tokens, size.language.width, size.language.vocabulary, trained, passes)


def _dit(size: Size) -> Flops:
    action, context = size.action, size.language.width
    width, tokens = action.width, action.tokens
    modulation = _linear(1, width, 2 * width, True, True)
    shared = modulation + _linear(tokens, width, 10 * width, True, True)  # query and out; the FFN's two, 4 wide each
    block = shared + _linear(tokens, width, 2 * width, True, True) + _attention(tokens, tokens, width, True)
    total = _linear(1, TIME_CHANNELS, width, True, False) + _linear(1, width, width, True, True) + modulation
    total += _linear(tokens, width, action.out, True, True)
    for index in range(action.layers):
        keys = size.vision.tokens if index % 4 else size.language.tokens
        cross = shared + _linear(keys, context, 2 * width, True, True) + _attention(tokens, keys, width, True)
        total += block if index % 2 else cross
    return total


def _embodiment(size: Size) -> Flops:
    action = size.action
    width, hidden, horizon = action.width, action.hidden, action.horizon
    return (_linear(1, action.state_dim, hidden, True, False) + _linear(1, hidden, width, True, True)
            + _linear(horizon, action.action_dim, width, True, False) + _linear(horizon, 3 * width, width, True, True)
            + _linear(action.tokens, action.out, hidden, True, True)
            + _linear(action.tokens, hidden, action.action_dim, True, True))


def _text_end(size: Size, fields: WorkloadFields) -> int:
    """Tokens that the decoder sees in a training step."""
    return size.vision.tokens + size.language.tokens + (size.language.answer_tokens if fields.text_loss else 0)


def _linear(tokens: int, inputs: int, outputs: int, weight: bool, passes: bool) -> Flops:
    """A matrix product; backward has one more for the weight's gradient, and one for the input's."""
    forward = 2.0 * tokens * inputs * outputs
    return Flops(forward, forward * (weight + passes))


def _attention(queries: int, keys: int, width: int, passes: bool) -> Flops:
    """Scores and mixing, all heads together; backward has two products for each of them."""
    forward = 4.0 * queries * keys * width
    return Flops(forward, 2 * forward * passes)


def _attention_forward(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    """From shapes [B, heads, length, head_dim]; grouped queries count every query head."""
    return 2 * math.prod(query[:3]) * key[2] * (query[3] + value[3])


def _attention_backward(_grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size,
                        *_: object, **__: object) -> int:
    """Scores again, and two products each for scores and mixing."""
    return 2 * math.prod(query[:3]) * key[2] * (3 * query[3] + 2 * value[3])
