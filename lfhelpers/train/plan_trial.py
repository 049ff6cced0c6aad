"""What one process measures for the planner: the blocks of a model without a plan, and each plan's peak and time.

Two trainers stand side by side, without a plan and with one, and take turns; where there is no room for both, the plan
is tried alone. What is measured is written after each point, so a process that dies loses the point it was at.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import nn
from tqdm import tqdm

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.levers import activations
from lfhelpers.levers import activations_plan as plans
from lfhelpers.levers.activations_choice import GIB, Point, Survey
from lfhelpers.levers.activations_plan import Block, Candidate, Effort, Profile
from lfhelpers.measure import allocator, statistics
from lfhelpers.measure.record import Row
from lfhelpers.recipe import Recipe
from lfhelpers.train import footprint
from lfhelpers.train.captured import CapturedStep
from lfhelpers.train.footprint import settle
from lfhelpers.train.trainer import Trainer


def load(file: Path) -> Survey:
    """A search's points as its file holds them."""
    return restored(orjson.loads(file.read_bytes()))


def restored(content: dict[str, Any]) -> Survey:
    """A search's points from JSON, which has null for NaN."""
    profile = content["profile"]
    blocks = tuple(Block(**block) for block in profile["blocks"])
    points = []
    for row in content["points"]:
        none = {name: math.nan for name in ("ms", "low", "high", "ratio") if row[name] is None}
        points.append(Point(**(row | none)))
    return Survey(Profile(**(profile | {"blocks": blocks})), tuple(points))


def save(found: Survey, file: Path) -> None:
    """Write the points of a search that goes on, whole or not at all."""
    _write(asdict(found) | {"done": False}, file)


def complete(file: Path) -> bool:
    """Whether the file holds a search that came to its end."""
    return file.exists() and bool(orjson.loads(file.read_bytes()).get("done"))


def measure(job: Recipe, effort: Effort, file: Path, terminal: int) -> None:
    """Measure everything that the file doesn't hold yet; `terminal`: a descriptor for progress, closed here."""
    found = load(file) if file.exists() else None
    plain = _Side(Candidate("none", "none", {"plan": "none"}).recipe(job))
    profile = found.profile if found else _profile(job, plain)
    if found:
        with contextlib.suppress(torch.OutOfMemoryError):
            plain.build()
    points = list(found.points) if found else []
    todo = plans.candidates(profile, job.compile.scope != "none", effort)
    known = {point.name for point in points}
    with os.fdopen(terminal, "w") as out:
        for candidate in tqdm(todo, "plans", file=out, disable=not out.isatty()):
            if candidate.name in known:
                continue
            start = Point(candidate.name, candidate.family, candidate.fields)
            _running(Survey(profile, tuple(points)), start, file)
            points.append(_tried(job, candidate, start, profile, plain, effort))
            if not out.isatty():
                print(f"plan {len(points)} of {len(todo)}: {points[-1]}", file=out, flush=True)
    _write(asdict(Survey(profile, tuple(points))) | {"done": True}, file)


def _running(found: Survey, point: Point, file: Path) -> None:
    """Keep the points so far, and which plan is being tried."""
    _write(asdict(found) | {"running": {"name": point.name, "family": point.family, "fields": point.fields}}, file)


def _write(content: dict[str, Any], file: Path) -> None:
    runs.write_atomic(file, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))


class _Side:
    """A recipe's trainer, built when it is first asked for; `saved` and `peak` of a step are measured on the way."""

    def __init__(self, job: Recipe) -> None:
        self.job = job
        self.trainer: Trainer | None = None
        self.saved: list[int] = []
        """Bytes of activations by block, and outside of blocks last."""
        self.standing = self.peak = 0
        self.ms = math.nan

    def build(self) -> Trainer:
        """The warmed-up trainer. Raises torch.OutOfMemoryError where there is no room."""
        if self.trainer is None:
            cuda = torch.cuda.is_available() and self.job.device != "cpu"
            before = torch.cuda.memory_allocated() if cuda else 0
            self.trainer = trainer = Trainer(self.job)
            trainer.run(2)  # the first steps' memory is not typical: states appear, code is compiled
            self.saved = list(footprint.saved_by_block(trainer).values())
            device = trainer.ranks.device
            self.standing = torch.cuda.memory_allocated() - before if cuda else \
                sum(footprint.standing(trainer).values())
            self.peak = self.standing + allocator.peak(lambda: trainer.run(1), device)
            trainer.warm_up()
        return self.trainer

    def drop(self) -> None:
        """Free it."""
        if self.trainer is not None:
            self.trainer.close()
        self.trainer = None
        footprint.release()


def _profile(job: Recipe, plain: _Side) -> Profile:
    """The blocks without a plan; from a smaller micro-batch, scaled, where the recipe's own doesn't fit."""
    try:
        return _profiled(plain)
    except torch.OutOfMemoryError:
        plain.drop()
        if job.batch.micro == 1:
            raise LfError("not even one sample fits without a plan, so there is nothing to plan from.") from None
    half = job.batch.micro // 2
    small = _Side(plain.job.with_(**{"batch.micro": half}))
    found = _profile(small.job, small)
    small.drop()
    return _scaled(found, job.batch.micro / half)


def _scaled(found: Profile, times: float) -> Profile:
    """A profile for a larger micro-batch: all but what stands grows with it."""
    blocks = tuple(replace(block, saved=int(block.saved * times), inputs=int(block.inputs * times),
                           ms=block.ms * times) for block in found.blocks)
    return replace(found, blocks=blocks, outside=int(found.outside * times), step_ms=found.step_ms * times,
                   peak=int(found.standing + (found.peak - found.standing) * times))


def _profiled(plain: _Side) -> Profile:
    trainer = plain.build()
    blocks = footprint.named_blocks(trainer)
    times = footprint.block_ms(trainer, blocks)
    inputs = _inputs(trainer, blocks)
    stay = any(parameter.grad is not None for parameter in trainer.parts.model.parameters())
    rows = [Block(name, saved, inputs.get(name, saved), times[name], _gradient_bytes(block))
            for (name, block), saved in zip(blocks.items(), plain.saved, strict=False)]
    plain.ms = 1e3 * _seconds(trainer, 3) / 3
    return Profile(tuple(rows), plain.saved[-1], plain.ms, plain.peak,
                   0 if stay else _gradient_bytes(trainer.parts.model), plain.standing)


def _gradient_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)


def _inputs(trainer: Trainer, blocks: dict[str, nn.Module]) -> dict[str, int]:
    """What each block saves where it is recomputed; a block that can't be is left out. Counted in an eager forward."""
    kinds = {name: type(block) for name, block in blocks.items()}
    able = {name: block for number, (name, block) in enumerate(blocks.items())
            if activations.obstacle(block, number) is None}
    try:
        for block in able.values():
            block.__class__ = activations.recomputing(type(block))
        with trainer.compilation.eager():
            found = footprint.counted_forward(trainer, blocks).by_block()
    finally:
        for name, block in blocks.items():
            block.__class__ = kinds[name]
    return {name: found.get(name, 0) for name in able}


def _tried(job: Recipe, candidate: Candidate, start: Point, profile: Profile, plain: _Side, effort: Effort) -> Point:
    """A candidate's point. Where it doesn't fit beside the plain side, that one is dropped, and it is tried alone."""
    if candidate.family == "budget":
        torch.compiler.reset()  # a budget is no guard: code compiled under another one would be taken again
        if plain.trainer is not None and not isinstance(plain.trainer.step, CapturedStep):
            plain.drop()  # it would be compiled anew, under the budget
    side = plain if candidate.family == "none" else _Side(candidate.recipe(job))
    try:
        return _timed(start, side, candidate, profile, plain, effort)
    except torch.OutOfMemoryError:
        alone = plain.trainer is None or side is plain
    except LfError as error:
        return replace(start, trouble=str(error))
    finally:  # here, where no frame holds the trainer any more
        if side is not plain:
            side.drop()
    if not alone:
        plain.drop()
        return _tried(job, candidate, start, profile, plain, effort)
    return without_room(start, profile)


def without_room(start: Point, profile: Profile, why: str = "") -> Point:
    """The point of a plan that had no room, with what the profile knows of its need.

    Of `ops` and `budget` it knows that they need no more than the step without a plan.
    """
    kept = plans.kept_bytes(profile, start.fields.get("blocks", ()))
    need = plans.predicted_peak(profile, kept)
    about = "at most about" if start.family in ("ops", "budget") else "about"
    return replace(start, saved=sum(kept) + profile.outside, predicted=need,
                   trouble=f"does not fit: needs {about} {need / GIB:.3g} GiB{why}")


def _timed(start: Point, side: _Side, candidate: Candidate, profile: Profile, plain: _Side, effort: Effort) -> Point:
    trainer = side.build()
    kept = plans.kept_bytes(profile, candidate.blocks) if candidate.family in ("none", "rule", "blocks") \
        else side.saved[:-1]
    point = replace(start, saved=sum(side.saved), peak=side.peak, predicted=plans.predicted_peak(profile, kept))
    if side is plain:
        return replace(point, ms=profile.step_ms, low=1.0, high=1.0, ratio=1.0)
    run = partial(trainer.run, effort.steps)
    if plain.trainer is not None:
        compared = statistics.interleave(partial(plain.trainer.run, effort.steps), run, effort.pairs, calls=1,
                                         settle=settle)
        effect = compared.effect
        return replace(point, ms=1e3 * statistics.summary(compared.b)["median"] / effort.steps, ratio=1 / effect.ratio,
                       low=1 / effect.high, high=1 / effect.low, aa_spread=effect.aa_spread)
    row = Row.of("", [1e3 * _seconds(trainer, effort.steps) / effort.steps for _ in range(effort.pairs)], "ms")
    return replace(point, ms=row.value, ratio=row.value / profile.step_ms, low=row.low / profile.step_ms,
                   high=row.high / profile.step_ms)


def _seconds(trainer: Trainer, steps: int) -> float:
    settle()
    began = time.perf_counter()
    trainer.run(steps)
    settle()
    return time.perf_counter() - began
