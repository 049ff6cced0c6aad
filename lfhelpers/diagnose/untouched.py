"""Measure on a model that someone trains, and hand it back as it was, with the proof.

Weights, buffers, the optimizer's state, the gradient exchange's, the schedule's count and all generators are copied
aside and put back; a fingerprint of their bits before and after says whether that worked. The price is a copy of what
is trained in the host's memory: frozen weights are not copied, only fingerprinted.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lfhelpers.errors import LfError
from lfhelpers.train.assemble import Parts
from lfhelpers.train.checkpoint import bare, generator_states, set_generator_states

CHUNK = 2**22
"""Bytes that are summed at once: their 64-bit copies stay small beside a model."""
ODD = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed integer: multiples of it are spread over all 64 bits (Knuth 6.4)."""


@dataclass
class Proof:
    """Fingerprints of all state; `after` is None until the block has ended."""

    before: str
    after: str | None = None


@contextmanager
def untouched(parts: Parts, device: torch.device) -> Iterator[Proof]:
    """For the block, everything may change; afterwards it is as before. Raises LfError where it is not."""
    proof = Proof(fingerprint(parts, device))
    model = bare(parts.model)
    kept = {name: value.detach().to("cpu", copy=True) for name, value in _changing(model)}
    adamw = parts.optimizer.adamw
    state, applied = _copied(adamw.state_dict()), parts.optimizer.applied.clone()
    scaler, exchange = parts.precision.scaler.state_dict(), _copied(_exchange(parts))
    generators, training = generator_states(device), model.training
    try:
        yield proof
    finally:
        with torch.no_grad():
            for name, value in _changing(model):
                value.copy_(kept[name])
        adamw.load_state_dict(state)
        parts.optimizer.applied.copy_(applied)
        if parts.precision.scaler.is_enabled():
            parts.precision.scaler.load_state_dict(scaler)
        if parts.exchange is not None and exchange:
            parts.exchange.load_state_dict(exchange)
        parts.optimizer.drop()
        model.train(training)
        set_generator_states(generators, device)
    proof.after = fingerprint(parts, device)
    if proof.after != proof.before:
        raise LfError("the model isn't as it was before it was measured: a workload that keeps state of its own must "
                      "be measured on a copy; load your checkpoint again before you go on.")


def fingerprint(parts: Parts, device: torch.device) -> str:
    """16 hex digits of all bits that training goes on from: equal states have equal ones."""
    digest = hashlib.blake2b(digest_size=8)
    held = {"model": bare(parts.model).state_dict(), "adamw": parts.optimizer.adamw.state_dict(),
            "applied": parts.optimizer.applied, "scaler": parts.precision.scaler.state_dict(),
            "exchange": _exchange(parts), "generators": generator_states(device)}
    for place, value in _leaves(held):
        content = _sums(value) if isinstance(value, Tensor) else repr(value)
        digest.update(f"{place}={content};".encode())
    return digest.hexdigest()


def _sums(value: Tensor) -> tuple[Any, ...]:
    """Shape, dtype and a 64-bit sum of a tensor's bits, each word times an odd number of its place."""
    bits = value.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = bits[:len(bits) // 4 * 4].view(torch.int32)
    total = 0
    for start in range(0, len(whole), CHUNK):
        words = whole[start:start + CHUNK].long()
        places = torch.arange(start + 1, start + 1 + len(words), device=words.device) * ODD | 1
        total = (total + int((words * places).sum())) % 2**64
    return tuple(value.shape), str(value.dtype), total, bits[len(whole) * 4:].tolist()


def _changing(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """What training changes: trainable weights and buffers."""
    weights = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    return [*weights, *model.named_buffers()]


def _exchange(parts: Parts) -> dict[str, Any]:
    return parts.exchange.state_dict() if parts.exchange is not None else {}


def _copied(held: Any) -> Any:
    """A deep copy; large tensors go to the host's memory."""
    if isinstance(held, Tensor):
        return held.detach().to("cpu", copy=True) if held.numel() > 1 else held.detach().clone()
    if isinstance(held, dict):
        return {key: _copied(value) for key, value in held.items()}
    if isinstance(held, list | tuple):
        return type(held)(_copied(value) for value in held)
    return copy.deepcopy(held)


def _leaves(held: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(held, dict):
        for key, value in held.items():
            yield from _leaves(value, f"{place}.{key}")
    elif isinstance(held, list | tuple) and len(held) < 1000 and not all(isinstance(item, int) for item in held):
        for index, value in enumerate(held):
            yield from _leaves(value, f"{place}.{index}")
    else:
        yield place, held
