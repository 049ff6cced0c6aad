"""Clean runs, in which every alarm is false, and runs with a fault each, which the detector it belongs to must find.

Clean recipes are of every kind that a detector looks at: with the profiled step, compiled, on two ranks. Two ranks are
processes on the CPU in any case, since a machine may have one GPU; what is looked for there is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from lfhelpers.data.manifest import Manifest
from lfhelpers.data.order import Ids, Plan
from lfhelpers.launch import launch
from lfhelpers.measure import hardware
from lfhelpers.pitfalls import base, checked
from lfhelpers.pitfalls.base import Small, elsewhere, job, trained
from lfhelpers.pitfalls.late_rank import LateSmall
from lfhelpers.pitfalls.order import order_fingerprint
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train import loop
from lfhelpers.workloads.base import Batch

STEPS = 64
CLEAN: tuple[tuple[int, tuple[str, ...]], ...] = (
    (1, ("log.probe=true",)), (2, ("log.probe=true", "batch.micro=4")), (1, ("compile.scope=model", "log.probe=true")),
    (1, ("data.workers=2",)), (1, ("batch.micro=4", "batch.accumulate=2")), (1, ("precision.mode=bf16",)),
    (1, ("data.last=drop",)), (1, ("optimizer.fused=false",)), (1, ("data.shuffle=block",)),
    (1, ("optimizer.clip_norm=0",)), (2, ("data.workers=1", "batch.micro=4")), (1, ("batch.micro=16",)),
    (1, ("optimizer.schedule=constant",)), (2, ("compile.scope=model", "batch.micro=4")))
"""Ranks and overrides of the clean runs, which take turns with another seed each."""


class Leaking(Small):
    """Small, which keeps a MiB of each step."""

    kept: tuple[Tensor, ...] = ()

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Small's loss."""
        self.kept = (*self.kept, torch.ones(2**18, device=batch["x"].device))
        return super().loss(model, batch, draws)


class Damaged(Small):
    """Small, one sample of which is not a number: that of workload.options.sample."""

    def sample(self, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """Small's sample."""
        tensors = super().sample(members)
        bad = base.members(int(self.job.workload.options["sample"])) == members
        return tensors | {"x": tensors["x"] * torch.nan if bad else tensors["x"]}


class Elastic(nn.Module):
    """Two linear layers, and the mean of what they make of a row's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, n, 4]; returns [B, 2]."""
        return self.layers(x).mean(1)


class Reshaping(Small):
    """Small, whose model is given another length in every other step."""

    calls = 0

    def model(self) -> nn.Module:
        """One that takes any length."""
        return Elastic()

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Small's loss."""
        self.calls += 1
        return super().loss(model, batch | {"x": batch["x"][:, None].expand(-1, 1 + self.calls % 2, -1)}, draws)


class Again(Plan):
    """A plan whose steps from the fifth on are the first four once more."""

    def slots(self, step: int, micro: int, rank: int) -> tuple[Ids, Any]:
        """Those of an earlier step."""
        return super().slots(step % 4, micro, rank)


def alarms(runs: int) -> list[str]:
    """What is found in so many clean runs, with the recipe that it was found in."""
    found = []
    for seed in range(runs):
        ranks, overrides = CLEAN[seed % len(CLEAN)]
        with made(ranks, f"steps={STEPS}", f"seed={seed}", *overrides) as run:
            found += [f"{ranks} ranks, {', '.join(overrides)}: {item}" for item in checked.check(run)]
    return found


def found(fault: str, runs: int) -> int:
    """In how many of so many runs the fault that was planted in them was found."""
    return sum(FAULTS[fault](seed) for seed in range(runs))


@contextmanager
def made(ranks: int, *overrides: str, use: type = Small) -> Iterator[Run]:
    """A finished run: of one rank in this process, on the machine's device; of several as a job on the CPU."""
    torch.compiler.reset()  # what an earlier run compiled would be taken from there
    if ranks == 1:
        with trained(f"device={hardware.device()[0]}", *overrides, use=use) as run:
            yield run
        return
    with job(*overrides, use=use) as chosen, elsewhere():
        yield launch(chosen, ranks, watch=False)


def _told(pitfall: str, ranks: int, *overrides: str, use: type = Small, text: str = "") -> bool:
    """Whether `check` names the pitfall, with this text, in such a run."""
    with made(ranks, *overrides, use=use) as run:
        return any(item.pitfall == pitfall and text in item.text for item in checked.check(run))


def _repeats(seed: int) -> bool:
    def plan(job: Recipe, manifest: Manifest, world: int) -> Plan:
        given = real(job, manifest, world)
        return Again(**{item.name: getattr(given, item.name) for item in dataclasses.fields(given) if item.init})
    real = loop.make_plan
    with mock.patch.object(loop, "make_plan", plan):
        return _told("resume_repeats", 1, f"seed={seed}")


def _reordered(seed: int) -> bool:
    """Whether the fingerprints of two runs with other seeds differ, and those of one seed don't."""
    prints = []
    for given in (seed, seed, seed + 1):
        with made(1, f"seed={given}") as run:
            prints.append(order_fingerprint(run))
    return not prints[0].against(prints[1]) and bool(prints[0].against(prints[2]))


def _bad(pitfall: str, seed: int, text: str) -> bool:
    return _told(pitfall, 1, f"steps={STEPS}", f"seed={seed}", f"workload.options.sample={seed}", use=Damaged,
                 text=text)


FAULTS: dict[str, Callable[[int], bool]] = {
    "leaks": lambda seed: _told("loss_list", 1, f"steps={STEPS}", f"seed={seed}", use=Leaking),
    "damaged_samples": lambda seed: _bad("black_image", seed, f"of sample {seed} is not finite"),
    "skipped_steps": lambda seed: _bad("scaler_collapse", seed, "steps were skipped"),
    "late_ranks": lambda seed: _told("late_rank", 2, "steps=16", f"seed={seed}", "batch.micro=4", use=LateSmall,
                                     text="rank 1 is late"),
    "recompilations": lambda seed: _told("recompiles", 1, "compile.scope=model", f"seed={seed}", use=Reshaping),
    "repeated_batches": _repeats,
    "other_orders": _reordered,
    "host_reads": lambda seed: _told("item_each_step", 1, "log.probe=true", "log.loss_item=true", f"seed={seed}"),
}
"""By what is planted: whether it was found in a run with this seed."""
