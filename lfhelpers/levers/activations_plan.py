"""Which activations to compute again: candidates, and what each should free and cost.

A block that is recomputed frees its saved bytes but for its inputs, and costs the time of its forward. So blocks are
taken by bytes freed for each millisecond computed again, the best bargain first. What no such arithmetic can know (what
a compiler fuses, what the allocator rounds) is measured: train.planner runs every candidate, and the choice is made
among measurements alone; predictions are kept beside them, to be scored. The rules of thumb of published advice are
candidates like all others, and each has one by bargain beside it that may cost as much time.

A compiler's memory budget is a family of candidates and no promise: it bounds what is saved, not the peak, and a
smaller budget may take more (pytorch issue 197838).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lfhelpers.recipe import Recipe

SEGMENTS = 4
Family = Literal["none", "rule", "blocks", "ops", "budget"]


@dataclass(frozen=True)
class Block:
    """One block of the model as measured without a plan: bytes and milliseconds of a micro-batch."""

    name: str
    saved: int
    """Activations that its forward saves."""
    inputs: int
    """What it saves where it is recomputed."""
    ms: float
    """Its forward, which recomputation repeats."""
    gradients: int
    """Bytes of gradients of its parameters, which appear while backward runs."""


@dataclass(frozen=True)
class Profile:
    """A model's blocks in the order of forward, and what there is beside them."""

    blocks: tuple[Block, ...]
    outside: int
    """Activations saved outside of blocks."""
    step_ms: float
    """A step without a plan."""
    peak: int
    """Bytes at the step's worst moment without a plan, all that stands included."""
    all_gradients: int = 0
    """Bytes of all gradients, where they appear while backward runs; 0 where they stay."""
    standing: int = 0
    """Bytes that stay between steps: weights, optimizer states, buffers."""

    @property
    def saved(self) -> int:
        """All activations saved without a plan."""
        return self.outside + sum(block.saved for block in self.blocks)

    def saving(self) -> list[int]:
        """Numbers of the blocks that recomputation frees bytes of, in order of forward."""
        return [number for number, block in enumerate(self.blocks) if block.saved > block.inputs]


@dataclass(frozen=True)
class Candidate:
    """A plan to try: the fields of `activations` that it sets."""

    name: str
    family: Family
    fields: dict[str, Any]
    blocks: tuple[int, ...] = ()
    """The blocks that are recomputed whole."""

    def recipe(self, job: Recipe) -> Recipe:
        """The recipe with this plan and no other."""
        plain: dict[str, Any] = {"plan": "none", "blocks": (), "recompute_every": 0}
        return job.with_(**{f"activations.{name}": value for name, value in (plain | self.fields).items()})


@dataclass(frozen=True)
class Effort:
    """How many plans are tried, and how long each is timed."""

    budgets: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
    """The compiler's memory budgets, where blocks are compiled."""
    every: tuple[int, ...] = (0, 3, 2)
    """Selective recomputation: each how-manieth product is computed again; 0: none."""
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Choices by bargain, of all bytes that can be freed."""
    rules: bool = True
    """Try the rules of thumb, and for each a choice by bargain at its price."""
    loss_rows: int = 0
    """Try each plan with the text loss in so many rows at a time."""
    pairs: int = 4
    """Timed blocks of each side, at least 3."""
    steps: int = 3
    """Steps of such a block."""


QUICK = Effort(budgets=(0.5, 0.2), every=(0, 2), shares=(0.5,), pairs=3, steps=2)


def candidates(profile: Profile, compiled: bool, effort: Effort = QUICK) -> list[Candidate]:
    """Plans worth measuring: none, rules of thumb and their rivals, choices by bargain, all blocks, ops, budgets."""
    plain = Candidate("none", "none", {"plan": "none"})
    plans = [*(_rules(profile) if effort.rules else []), *_blocks(profile, effort.shares)]
    plans += [Candidate("keep products and attention" + (f", recompute each {number}." if number else ""), "ops",
                        {"plan": "ops", "recompute_every": number}) for number in effort.every]
    if compiled:
        plans += [Candidate(f"compiler's budget {share:g}", "budget", {"plan": "budget", "budget": share})
                  for share in effort.budgets]
    if effort.loss_rows:
        plans = [replace(plan, name=f"{plan.name}, loss in rows", fields=plan.fields | {"loss_rows": effort.loss_rows})
                 for plan in [Candidate("nothing", "blocks", {"plan": "none"}), *plans]]
    return _distinct([plain, *plans])


def _rules(profile: Profile) -> list[Candidate]:
    found = []
    rules = {name: blocks for name, blocks in rules_of_thumb(profile.saving()).items() if blocks}
    for name, numbers in rules.items():
        found.append(_whole(f"rule: {name}", "rule", numbers))
        ours = by_bargain(profile, ms=recomputed_ms(profile, numbers))
        if all_freed(profile, ours) < all_freed(profile, numbers):  # by the last block that still fits, a rule can win
            ours = numbers
        if ours:
            found.append(_whole(f"bargain at the price of '{name}'", "blocks", ours))
    return found


def _blocks(profile: Profile, shares: Sequence[float]) -> list[Candidate]:
    if not profile.saving():
        return []
    return [*(_whole(f"bargain, {100 * share:.0f} % of bytes", "blocks", by_bargain(profile, share=share))
              for share in shares), _whole("all blocks", "blocks", profile.saving())]


def rules_of_thumb(numbers: Sequence[int]) -> dict[str, list[int]]:
    """Published advice as numbers of recomputed blocks, of those that save anything: {rule: numbers}.

    The last recomputes the blocks that checkpoint_sequential would, all but those of its last segment, but one by one,
    as a recipe's list of blocks can say it. So it keeps the inputs of blocks inside a segment, which torch's own does
    not: nothing where a segment is one block, and else the only difference in saved bytes (a test counts both).
    """
    quarter = len(numbers) // 4
    return {
        "every second block": list(numbers[::2]),
        "save the ends, recompute the middle": list(numbers[quarter:len(numbers) - quarter]),
        f"all but the last of {SEGMENTS} segments": list(numbers[:len(numbers) - len(numbers) // SEGMENTS]),
    }


def by_bargain(profile: Profile, share: float = 1.0, ms: float = math.inf) -> list[int]:
    """Blocks by bytes freed for each millisecond computed again, until `share` of all bytes is free or `ms` is spent.

    A block that would pass the price is skipped, and cheaper ones behind it are tried.
    """
    ranked = sorted(profile.saving(), key=lambda number: -_bargain(profile.blocks[number]))
    wanted = share * all_freed(profile, ranked)
    taken: list[int] = []
    got = spent = 0.0
    for number in ranked:
        if got >= wanted:
            break
        cost = profile.blocks[number].ms
        if spent + cost <= ms * (1 + 1e-9):
            taken.append(number)
            got, spent = got + freed(profile.blocks[number]), spent + cost
    return sorted(taken)


def freed(block: Block) -> int:
    """Bytes that recomputing the block no longer saves."""
    return block.saved - block.inputs


def all_freed(profile: Profile, numbers: Collection[int]) -> int:
    """Bytes that recomputing these blocks no longer saves."""
    return sum(freed(profile.blocks[number]) for number in numbers)


def recomputed_ms(profile: Profile, numbers: Collection[int]) -> float:
    """Milliseconds of forward that backward repeats."""
    return sum(profile.blocks[number].ms for number in numbers)


def predicted_peak(profile: Profile, kept: Sequence[int]) -> int:
    """Peak bytes of a step whose blocks keep `kept` bytes each, from the peak without a plan.

    Forward fills up; backward takes block after block from the end: it holds what the blocks before keep, all that
    this one needs, and the gradients of those behind. What the profile can't know is the same with and without a plan.
    """
    plain = [block.saved for block in profile.blocks]
    return profile.peak + _worst(profile, kept) - _worst(profile, plain)


def kept_bytes(profile: Profile, recomputed: Collection[int]) -> list[int]:
    """Bytes that each block keeps where these are recomputed whole."""
    return [block.inputs if number in recomputed else block.saved for number, block in enumerate(profile.blocks)]


def _worst(profile: Profile, kept: Sequence[int]) -> int:
    live = profile.outside + sum(kept)
    worst, gradients = live, 0
    for block, bytes_kept in zip(reversed(profile.blocks), reversed(kept), strict=True):
        worst = max(worst, live - bytes_kept + block.saved + gradients)
        live -= bytes_kept
        gradients += block.gradients if profile.all_gradients else 0
    return max(worst, profile.all_gradients)


def _bargain(block: Block) -> float:
    return freed(block) / max(block.ms, 1e-6)


def _whole(name: str, family: Family, numbers: Sequence[int]) -> Candidate:
    return Candidate(name, family, {"plan": "blocks", "blocks": tuple(numbers)}, tuple(numbers))


def _distinct(found: Sequence[Candidate]) -> list[Candidate]:
    """Each plan once; a rule of thumb and the choice by bargain that is meant to beat it may be alike."""
    return list({(candidate.family == "rule", repr(candidate.fields)): candidate for candidate in reversed(found)}
                .values())[::-1]
