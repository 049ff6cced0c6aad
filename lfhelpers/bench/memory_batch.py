"""What freed memory wins: the largest micro-batch with and without a plan, and throughput over the micro-batch.

Each side has a process of its own, so what doesn't fit there costs nobody else anything. Blocks run eagerly here: a
search over micro-batches would spend its time in compiling each of them, and from a few samples on the host is ahead of
the GPU anyway. Both sides are treated alike: the same limit and search, and on both the text loss's logits in rows, so
that what is won is the plan's alone.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from lfhelpers.errors import LfError
from lfhelpers.levers import activations_choice as choice
from lfhelpers.levers import batch
from lfhelpers.levers.activations_choice import GIB
from lfhelpers.levers.activations_plan import Candidate, Effort
from lfhelpers.measure import allocator, hardware, isolated
from lfhelpers.measure import pace as paces
from lfhelpers.measure.record import Row
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.train import footprint, planner
from lfhelpers.train.trainer import Trainer

ROOM = 0.93
"""Share of a GPU's memory that tensors may take; the rest is CUDA's, and pieces too small to be used."""
CPU_ROOM = 3
"""On a CPU, whose memory has no end worth reaching, the limit is emulated: so many times what a step needs."""
GAIN = 2.2
"""Times the micro-batch that the plan is to make room for, with a little to spare over twice."""
WIDENED = ("workload.tune_language=true", "workload.text_loss=1.0", "frozen.ahead=false", "compile.scope=none",
           "graph.scope=none")


@dataclass(frozen=True)
class Scale:
    """How large the bench is made on a kind of machine."""

    base: str
    """The named recipe."""
    size: str
    micro: int
    """Of `plans`: enough for activations to matter."""
    widened: int
    """Of the survey of `widened`."""
    loss_rows: int
    """Samples whose logits exist at a time, without a plan and with one."""
    paces: tuple[int, ...]
    """Micro-batches of `pace`."""
    most: int
    """Largest micro-batch that is tried."""
    overrides: tuple[str, ...] = ()

    def job(self, micro: int, *overrides: str, base: str | None = None) -> Recipe:
        """The recipe at a micro-batch."""
        return recipe(base or self.base, f"workload.size={self.size}", f"batch.micro={micro}", "log.skip=0",
                      "steps=1000", *overrides, *self.overrides)


class Part(NamedTuple):
    """What one part of the bench found."""

    line: str
    rows: list[Row]
    checks: dict[str, float]
    notes: dict[str, Any]
    spread: float = 0.0


def widened(scale: Scale) -> Part:
    """The whole decoder trained, text loss on: largest micro-batch and throughput, without a plan and with one.

    The chosen points are compared, under `chosen` in the notes: with the plan that of the largest micro-batch, without
    one the fastest, each of those within the limit alone. Raises LfError where a side has no point there.
    """
    job = scale.job(scale.widened, *WIDENED, f"activations.loss_rows={scale.loss_rows}")
    effort = Effort(budgets=(), every=(0,), rules=False, pairs=3, steps=2)
    found = planner.survey(job, effort, again=True)
    limit = _limit(found.profile.standing, found.profile.peak)
    point = choice.fastest_with_room(found, scale.widened, limit, GAIN)
    sides = {"without a plan": job, "with the plan": Candidate(point.name, point.family, point.fields).recipe(job)}
    rows, notes = [], {"plan": asdict(point), "limit_gib": limit / GIB, "survey": asdict(found)}
    rates: list[dict[int, float]] = []
    for name, side in sides.items():
        searched, ms = isolated.call(_searched, side, limit, scale.most, 2, max(4, scale.widened // 2), timeout=900)
        if not searched.largest:
            raise LfError(f"{name} not even one probe fits: {'; '.join(each.text for each in searched.points)}.")
        rows += [Row(name, searched.largest, searched.largest, searched.largest, "largest micro-batch", 1)]
        rows += [Row.of(f"{name}, micro-batch {micro}", [1e3 * micro / each for each in times], "samples/s")
                 for micro, times in sorted(ms.items())]
        notes[name] = [each._asdict() for each in searched.points]
        print(f"widened, {name}: micro-batches up to {searched.largest} fit", flush=True)
        rates.append({micro: 1e3 * micro / float(np.median(times)) for micro, times in ms.items()})
    plain, planned = rates
    fastest, largest = max(plain, key=lambda micro: plain[micro]), max(planned)
    notes["chosen"] = {"without a plan": {"micro": fastest, "samples_per_s": plain[fastest]},
                       "with the plan": {"micro": largest, "samples_per_s": planned[largest]}}
    gain, rate = largest / max(plain), planned[largest] / plain[fastest]
    line = (f"'{point.name}': largest micro-batch {max(plain)} to {largest}, and there {rate:.3f} x the samples/s of "
            f"the best without a plan, micro-batch {fastest}")
    return Part(line, rows, {"micro_batch_gain": gain, "samples_per_s_over_no_plan": rate}, notes, _spread(found))


def pace(scale: Scale) -> Part:
    """Milliseconds of the eager step of `competent` over the micro-batch, and the knee between host and device.

    The knee is a row in samples and in the notes: None where the host sets the pace throughout.
    """
    jobs = [scale.job(micro, base="competent") for micro in scale.paces]
    times: dict[int, list[float]] = isolated.call(_paces, jobs, timeout=300)
    points = {micro: float(np.median(values)) for micro, values in times.items()}
    fit = paces.pace(points)
    rows = [Row.of(f"competent, micro-batch {micro}", values, "ms") for micro, values in times.items()]
    knee = None if np.isinf(fit.knee) else fit.knee
    rows += [] if knee is None else [Row("knee", knee, knee, knee, "samples", 1)]
    return Part(fit.sentence(), rows, {}, {"picture": paces.picture(points, fit), "fit": fit._asdict(), "knee": knee})


def _searched(side: Recipe, limit: float, most: int, small: int, large: int
              ) -> tuple[batch.Found, dict[int, list[float]]]:
    """In the side's own process: what the search found, and the milliseconds of steps that fit, by micro-batch."""
    probes = _Probes(side)
    found = batch.search(probes, limit, most, small, large)
    return found, {each.micro: probes.ms[each.micro] for each in found.points if each.fits}


class _Probes:
    """A side's probes for batch.search: peak bytes of a step, and its milliseconds on the way.

    One trainer makes them all: a model of full size takes longer to build than to be probed.
    """

    def __init__(self, job: Recipe) -> None:
        self._job = job
        self._trainer: Trainer | None = None
        self.ms: dict[int, list[float]] = {}

    def __call__(self, micro: int) -> float:
        """Peak bytes. Raises batch.DoesNotFit."""
        peak = None
        with contextlib.suppress(torch.OutOfMemoryError):
            peak = self.probed(micro)
        footprint.release()  # here, where no frame holds a step's tensors any more
        if peak is None:
            raise batch.DoesNotFit(f"micro-batch {micro} ran out of memory")
        return peak

    def probed(self, micro: int) -> float:
        """Peak bytes of a step; its times are in `ms` then."""
        if self._trainer is None:
            self._trainer = Trainer(self._job.with_(**{"batch.micro": micro}))
        trainer = self._trainer
        trainer.resize(micro)
        trainer.run(2)
        device = trainer.ranks.device
        stands = torch.cuda.memory_allocated(device) if device.type == "cuda" else \
            sum(footprint.standing(trainer).values())
        peak = stands + allocator.peak(lambda: trainer.run(1), device)
        self.ms[micro] = _times(trainer, 3)
        return float(peak)


def _paces(jobs: list[Recipe]) -> dict[int, list[float]]:
    found = {}
    for job in jobs:
        trainer = Trainer(job)
        trainer.run(3)
        found[job.batch.micro] = _times(trainer, 5)
        trainer.close()
        del trainer
    return found


def _times(trainer: Trainer, rounds: int) -> list[float]:
    """Milliseconds of a step, `rounds` times, each the mean of two steps in a row."""
    times = []
    for _ in range(rounds):
        footprint.settle()
        began = time.perf_counter()
        trainer.run(2)
        footprint.settle()
        times.append(1e3 * (time.perf_counter() - began) / 2)
    return times


def _limit(standing: int, peak: int) -> float:
    gpus = hardware.describe()["hardware"]["gpus"]
    return ROOM * min(gpu["memory_gib"] for gpu in gpus) * GIB if gpus else standing + CPU_ROOM * (peak - standing)


def _spread(found: choice.Survey) -> float:
    return max((point.aa_spread for point in found.fitting), default=0.0)
