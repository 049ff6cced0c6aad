"""Batches of the `vla` workload for its tests: members as a shard holds them, and random pixels."""

from __future__ import annotations

import json

import numpy as np
import torch

from lfhelpers.recipe import Recipe, recipe
from lfhelpers.workloads.base import Batch
from lfhelpers.workloads.vla.model import VlaModel
from lfhelpers.workloads.vla.tabletop import text
from lfhelpers.workloads.vla.tabletop.scene import scene
from lfhelpers.workloads.vla.workload import Vla


def job(*overrides: str) -> Recipe:
    """`competent` in fp32, so that what should be equal is equal to rounding."""
    return recipe("competent", "precision.mode=fp32", *overrides)


def members(seed: int) -> dict[str, bytes]:
    """A sample's non-image members: words of a real scene, and a state and actions at random."""
    numbers = np.random.default_rng(seed).uniform(-1, 1, 120).astype("<f4")
    world = scene(0, seed)
    said = {"caption": text.caption(world), "questions": text.questions(world)}
    return {"txt": text.instruction(world).encode(), "state.f32": numbers[:8].tobytes(),
            "action.f32": numbers[8:].tobytes(), "json": json.dumps(said).encode()}


def batch(workload: Vla, samples: int, first: int = 0) -> Batch:
    """A host batch of samples `first`, `first` + 1, ..., each the same whatever batch it is in."""
    rows = [workload.sample(members(first + index)) for index in range(samples)]
    stacked = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    side = workload.fields.size
    pixels = [np.random.default_rng(first + index).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
              for index in range(samples)]
    return {**stacked, "images": torch.from_numpy(np.stack(pixels)), "ids": torch.arange(first, first + samples),
            "valid": torch.ones(samples)}


def built(workload: Vla, seed: int = 0) -> VlaModel:
    """A model with a seed's weights, a little shaken: nothing is zero that training would make non-zero."""
    torch.manual_seed(seed)
    model = workload.model()
    shake = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modulation" in name or "action_decoder" in name:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=shake))
    return model
