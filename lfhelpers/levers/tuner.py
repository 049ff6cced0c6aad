"""Bucket sizes chosen by simulation and proved by measurement.

All plans are simulated, from the link's curve and the times at which gradients are ready; the best three are run. A
simulation costs milliseconds, a run a warm-up and seconds. Two things the simulator can't know are fitted to two runs:
one bucket for all, which nothing hides, tells how long transfers are in a step; torch's default then tells by how much
kernels slow down beside them. The prediction for the plan that is chosen is scored against its measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lfhelpers.errors import LfError
from lfhelpers.levers import buckets_sim
from lfhelpers.levers.buckets_sim import FIRST_MB, MB, Gradient, Outcome
from lfhelpers.measure.link import Link
from lfhelpers.measure.statistics import Effect

Limits = tuple[float, ...]
DEFAULT = "torch's default"
OPTIMUM = "simulated optimum"
SIZES_MB = (10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
ONE = "one bucket"
MOST_SLOWING = 4.0
MOST_STRETCH = 4.0
LEAST_HIDDEN = 0.25
"""Share of all transfers that torch's default must hide for slowed kernels to be told from noise."""


@dataclass(frozen=True)
class Model:
    """What a plan's cost is computed from; buckets_sim.simulate says what `slowing` does.

    wire: bytes that cross the link for each byte of gradients: 0.5 where a hook halves them. stretch: by how much a
    transfer in a step is longer than one alone.
    """

    gradients: tuple[Gradient, ...]
    link: Link
    wire: float = 1.0
    slowing: float = 0.0
    stretch: float = 1.0

    @property
    def pass_ms(self) -> float:
        """When the last gradient is ready."""
        return max(gradient.ready_ms for gradient in self.gradients)

    @property
    def total_mb(self) -> float:
        """MiB of all gradients."""
        return sum(gradient.size for gradient in self.gradients) / MB

    def simulate(self, limits: Limits) -> Outcome:
        """A pass with these buckets."""
        return buckets_sim.simulate(self.gradients, limits, self.transfer_ms, self.pass_ms, self.slowing)

    def transfer_ms(self, size: float) -> float:
        """Milliseconds that a bucket of `size` bytes travels."""
        return self.stretch * self.link.ms(self.wire * size)

    def calibrated(self, one_bucket_ms: float, default_ms: float) -> Model:
        """The model under which one bucket and torch's default add to a step what was measured, as nearly as can be.

        Slowing is left at 0 where the default hides too little for it to be told from noise.
        """
        plain = replace(self, slowing=0.0, stretch=1.0)
        alone = plain.simulate(self.one_bucket).added_ms
        plain = replace(plain, stretch=min(max(one_bucket_ms / alone, 1 / MOST_STRETCH), MOST_STRETCH))
        hidden, missing = plain.simulate(()).hidden_ms, default_ms - plain.simulate(()).added_ms
        if missing <= 0 or hidden < LEAST_HIDDEN * alone:
            return plain
        return replace(plain, slowing=_solved(
            lambda value: replace(plain, slowing=value).simulate(()).added_ms, default_ms, MOST_SLOWING))

    @property
    def one_bucket(self) -> Limits:
        """Limits that no gradients fill: one bucket for each dtype."""
        return (self.total_mb + 1,)


@dataclass(frozen=True)
class Verified:
    """A plan as it ran: a step's milliseconds, what the exchange adds to it, and the paired effect that says so.

    effect: from the step with the exchange to the same step without it, so its ratio is above 1.
    """

    step_ms: float
    added_ms: float
    effect: Effect


@dataclass(frozen=True)
class Plan:
    """A candidate: its limits in MiB, what was predicted, and what was measured if it was run."""

    name: str
    limits: Limits
    predicted: Outcome
    measured: Verified | None = None


@dataclass(frozen=True)
class Choice:
    """The plan that ran fastest of those that were run, and all candidates, the best prediction first."""

    best: Plan
    plans: tuple[Plan, ...]
    model: Model

    @property
    def exposed_error(self) -> float:
        """By what share the chosen plan's predicted cost misses the measured one; 0.25 is 25 %."""
        measured = self.best.measured
        assert measured is not None, "the chosen plan was run"
        return abs(self.best.predicted.added_ms - measured.added_ms) / max(abs(measured.added_ms), 1e-9)


def candidates(model: Model) -> dict[str, Limits]:
    """Plans worth a simulation, by name: one size for all, the same with a tail of small ones, the optimum, one bucket.

    Plans that give the same buckets are named once.
    """
    total = model.total_mb
    named: dict[str, Limits] = {DEFAULT: ()}
    for size in SIZES_MB if total > SIZES_MB[1] else [total / part for part in (16, 8, 4, 2)]:
        if size < total:
            named[f"{size:.3g} MiB"] = (first_mb(size), size)
            named[f"{size:.3g} MiB, small at the end"] = tapered(total, size)
    named[ONE] = model.one_bucket
    named[OPTIMUM] = buckets_sim.optimum(model.gradients, model.transfer_ms)
    seen: dict[tuple[int, ...], str] = {}
    for name, limits in named.items():
        seen.setdefault(tuple(len(bucket) for bucket in buckets_sim.assign(model.gradients, limits)), name)
    return {name: named[name] for name in seen.values()}


def first_mb(size_mb: float) -> float:
    """The small first bucket before those of a size."""
    return min(FIRST_MB, size_mb / 4)


def tapered(total_mb: float, size_mb: float) -> Limits:
    """Limits for `total_mb`: a small first bucket, large ones, and halves towards the end, which nothing hides."""
    first, tail, half = first_mb(size_mb), list[float](), size_mb / 2
    while half > first:
        tail.append(half)
        half /= 2
    tail.append(first)
    whole = max(0, int((total_mb - first - sum(tail)) // size_mb))
    return (first, *[size_mb] * whole, *tail)


def tune(model: Model, verify: Callable[[str, Limits], Verified], best: int = 3,
         plans: Mapping[str, Limits] | None = None) -> Choice:
    """Choose bucket limits: calibrate by two runs, simulate all plans, run the `best` ones, take the fastest.

    verify(name, limits) runs a plan in turns with the same step without exchange; torch's default and one bucket are
    run in any case. Raises LfError for a model without gradients.
    """
    if not model.gradients:
        raise LfError("there are no gradients to plan buckets for; the model has no trained parameter.")
    ran = {DEFAULT: verify(DEFAULT, ()), ONE: verify(ONE, model.one_bucket)}
    model = model.calibrated(ran[ONE].added_ms, ran[DEFAULT].added_ms)
    found = plans or candidates(model)
    ordered = ranked(model, found)
    for plan in ordered[:best]:
        if plan.name not in ran:
            ran[plan.name] = verify(plan.name, plan.limits)
    finished = [replace(plan, measured=ran.get(plan.name)) for plan in ordered]
    tried = [plan for plan in finished if plan.measured is not None]
    # Ratios to the step without exchange, measured beside each plan, compare better than times of different minutes.
    chosen = min(tried, key=lambda plan: plan.measured.effect.ratio if plan.measured else 0.0)
    return Choice(chosen, tuple(finished), model)


def ranked(model: Model, plans: Mapping[str, Limits]) -> list[Plan]:
    """The plans with their predictions, the cheapest first; of equals the one with fewer buckets."""
    simulated = [Plan(name, limits, model.simulate(limits)) for name, limits in plans.items()]
    return sorted(simulated, key=lambda plan: (round(plan.predicted.end_ms, 3), len(plan.predicted.buckets)))


def rows(plans: Sequence[Plan]) -> list[dict[str, object]]:
    """The table of a choice: predicted and measured milliseconds that the exchange adds to a step."""
    return [{"buckets": plan.name, "count": len(plan.predicted.buckets),
             "largest [MiB]": max(sent.size for sent in plan.predicted.buckets) / MB,
             "predicted [ms]": plan.predicted.added_ms,
             "measured [ms]": plan.measured.added_ms if plan.measured else None} for plan in plans]


def _solved(value_at: Callable[[float], float], wanted: float, most: float) -> float:
    """Where a growing function reaches `wanted` between 0 and `most`; `most` where it doesn't."""
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if value_at(middle) < wanted else (low, middle)
    return high
