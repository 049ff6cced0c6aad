"""Is the winner what it seems to be? Fresh runs beside the base, and the gate of all that it changes.

The fastest of many trials is fast partly because it was lucky: what it reached in the search is biased upwards, the
more so the more trials there were. So none of the search's figures counts here. Winner and base are run again, in
turns, and the ratio of those runs is what is claimed; the same for quality, by the gate of the class. A winner that
fails gives way to the one before it, and the last one to the base.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial

from lfhelpers import runs
from lfhelpers.bench.jobs import Jobs
from lfhelpers.errors import LfError
from lfhelpers.levers.table import Equivalence
from lfhelpers.measure import statistics
from lfhelpers.quality import equivalence
from lfhelpers.quality import levers as gates
from lfhelpers.quality.levers import Verdict
from lfhelpers.recipe import Recipe, diff
from lfhelpers.tune import space, storage
from lfhelpers.tune import trial as trials
from lfhelpers.tune.search import BASE, Search

NONE = "no improvement found, the baseline is kept"
WINNER = "winner.toml"


@dataclass(frozen=True)
class Verified:
    """The trial that won, None for the base; its fresh rate over the base's with its interval; its gate and verdict.

    `refused` are the sentences of those that were faster in the search alone, or not equal.
    """

    trial: int | None
    ratio: float
    low: float
    high: float
    gate: Equivalence
    verdict: Verdict | None
    refused: tuple[str, ...] = ()
    recipe: Recipe | None = None

    @property
    def sentence(self) -> str:
        """What the study found."""
        ending = "".join(f" {each}." for each in self.refused)
        if self.trial is None or self.verdict is None:
            return f"{NONE}.{ending}"
        return (f"trial {self.trial} is {self.ratio:.3f} times as fast as the base ({self.low:.3f} to {self.high:.3f}) "
                f"in runs of its own, and passes the gate {self.gate}: {self.verdict.found}.{ending}")


def verify(search: Search, rounds: int = 2, seeds: int = 5, confirm: Sequence[str] = ()) -> Verified:
    """Run winner and base again, ask the winner's gate, and write its recipe beside the study where both hold.

    rounds: fresh runs of each. seeds: pairs of runs for a winner of class `changed`. confirm: overrides for all runs,
    such as the full data set's path. Stopped, it goes on with the runs that it has.
    """
    refused: list[str] = []
    for trial in reversed([one for one in search.finished if one.user_attrs.get("took_over")]):
        if trial.user_attrs.get("start") == BASE:
            break
        found = _asked(search, trial, rounds, seeds, confirm)
        if isinstance(found, Verified):
            job = search.given.with_(**{name: new for name, (_, new) in diff(search.base, search.job(trial)).items()})
            job = job.with_(name=f"{search.options.name}-{trial.number}")
            runs.write_atomic(search.place / WINNER, job.to_toml().encode())
            return Verified(found.trial, found.ratio, found.low, found.high, found.gate, found.verdict,
                            tuple(refused), job)
        refused.append(found)
    (search.place / WINNER).unlink(missing_ok=True)  # of an earlier call, which other runs have refuted since
    return Verified(None, 1.0, 1.0, 1.0, "exact", None, tuple(refused))


def _asked(search: Search, trial: FrozenTrial, rounds: int, seeds: int, confirm: Sequence[str]) -> Verified | str:
    """The verdict on one trial, or the sentence for which it is refused."""
    pair = {"base": search.base.with_(*confirm), "winner": search.job(trial).with_(*confirm)}
    jobs = Jobs.of("study", [storage.key(job) for job in pair.values()])
    nproc, device = search.options.nproc, search.where.device
    gate = space.equivalence(search.base, search.knobs, search.job(trial))
    try:
        ratio, spread = _fresh(jobs, pair, nproc, rounds)
        if ratio / (1 + spread) <= 1:
            return (f"trial {trial.number} was faster in the search alone: {ratio:.3f} times the base in runs of its "
                    f"own, which differ by up to {spread:.1%}")
        verdict = {"exact": lambda: _exact(jobs, pair, nproc, device),
                   "reordered": lambda: _reordered(jobs, pair, nproc),
                   "changed": lambda: _changed(jobs, pair, nproc, seeds, search.options.margin)}[gate]()
    except LfError as error:
        return f"trial {trial.number} can't be verified: {str(error).rstrip('.')}"
    if not verdict.passed:
        return f"trial {trial.number} does not pass the gate {gate}: {verdict.found}"
    return Verified(trial.number, ratio, ratio / (1 + spread), ratio * (1 + spread), gate, verdict)


def _fresh(jobs: Jobs, pair: dict[str, Recipe], nproc: int, rounds: int) -> tuple[float, float]:
    """(ratio of rates in fresh runs, in turns; by what share a side differs from itself)."""
    rates: dict[str, list[float]] = {side: [] for side in pair}
    for turn in range(rounds):
        for side in list(pair)[::1 if turn % 2 == 0 else -1]:
            run = jobs.run(f"{side} {turn}", pair[side].with_(name=side), nproc)
            rates[side].append(run.summary["samples_per_s"])
    logs = np.log(rates["winner"]) - np.log(rates["base"])
    spread = max(statistics.spread(each[:-1], each[1:]) for each in rates.values()) if rounds > 1 else 0.0
    return math.exp(logs.mean()), spread


def _exact(jobs: Jobs, pair: dict[str, Recipe], nproc: int, device: str) -> Verdict:
    short = gates.fixed(pair["base"], pair["winner"], device)
    return gates.exact(*(trials.losses(jobs.run(f"exact {side}", job.with_(name=side), nproc))
                         for side, job in zip(pair, short, strict=True)))


def _reordered(jobs: Jobs, pair: dict[str, Recipe], nproc: int) -> Verdict:
    """By losses of the fresh runs, and by gradients where arithmetic differs."""
    losses = [trials.losses(jobs.run(f"{side} 0", job, nproc)) for side, job in pair.items()]
    errors: tuple[float | None, float | None] = (None, None)
    sections = {name.partition(".")[0] for name in diff(pair["base"], pair["winner"])}
    if sections & {*gates.ARITHMETIC, "activations"}:
        eager = pair["base"].with_(**{"compile.scope": "none", "graph.scope": "none", "precision.weights": "fp32",
                                      "frozen.packed": False, "frozen.ahead": False, "activations.plan": "none",
                                      "activations.blocks": (), "activations.recompute_every": 0})
        found = gates.gradient_errors({"eager": eager, "winner": pair["winner"]})
        errors = found["winner"], found["eager"]
    common = min(map(len, losses))  # recording a CUDA graph takes more steps before the timed ones
    return gates.reordered(losses[0][:common], losses[1][:common], *errors)


def _changed(jobs: Jobs, pair: dict[str, Recipe], nproc: int, seeds: int, margin: float) -> Verdict:
    """Two one-sided tests over paired seeds, on the loss of the last quarter; the margin as in the search."""
    figures = {side: [trials.learnt(jobs.run(f"{side} seed {seed}", job.with_(name=side, seed=seed), nproc).steps())
                      for seed in range(seeds)] for side, job in pair.items()}
    found = equivalence.tost(figures["base"], figures["winner"], margin * abs(plain.fmean(figures["base"])))
    return Verdict(found.passes, str(found))
