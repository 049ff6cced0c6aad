"""Summaries of timings, and the paired comparison by which every speed-up of the playbook is stated.

A machine's speed drifts (clocks, temperature, neighbours), so two variants are timed in alternating blocks, A B B A,
and compared pair by pair: drift hits both sides of a pair alike and cancels in their ratio. What one variant shows
against itself, the A/A spread, is the noise floor: an effect inside it is no change, however narrow its interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lfhelpers.errors import LfError

RESAMPLES = 10_000
LEAST_PAIRS = 3
Array = NDArray[np.float64]


def summary(values: Sequence[float]) -> dict[str, float]:
    """{"median", "mean", "p95"} in the values' unit, NaN for no values; the mean holds the stalls: use it for rates."""
    if not len(values):
        return dict.fromkeys(("median", "mean", "p95"), math.nan)
    return {"median": float(np.median(values)), "mean": float(np.mean(values)), "p95": float(np.percentile(values, 95))}


@dataclass(frozen=True)
class Effect:
    """How many times faster B is than A: `ratio` = time of A / time of B, with its 95 % interval `low`..`high`.

    `aa_spread` is the noise floor as a share (0.02 is 2 %), `n` the number of block pairs.
    """

    ratio: float
    low: float
    high: float
    aa_spread: float
    n: int

    @property
    def verdict(self) -> str:
        """`faster`, `slower` or `no change`: a change must exclude 1 from its interval and exceed the A/A spread."""
        certain = self.low > 1 or self.high < 1
        if not certain or abs(math.log(self.ratio)) <= math.log1p(self.aa_spread):
            return "no change"
        return "faster" if self.ratio > 1 else "slower"

    def __str__(self) -> str:
        return (f"{self.ratio:.3f}x (95 % {self.low:.3f}-{self.high:.3f}, A/A spread ±{self.aa_spread:.1%}, "
                f"n={self.n}): {self.verdict}")


def effect(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Effect:
    """The effect of going from A to B, from the times of paired blocks (any unit, all > 0); deterministic by `seed`.

    The statistic is the mean of the pairs' log-ratios; see `interval` for its interval. LfError for fewer than 3 pairs.
    """
    if len(a) != len(b) or len(a) < LEAST_PAIRS:
        raise LfError(f"a comparison needs at least {LEAST_PAIRS} pairs of blocks, as many of A as of B; "
                      f"there are {len(a)} of A and {len(b)} of B.")
    if min(*a, *b) <= 0:
        raise LfError("a comparison needs block times above 0; time more work in each block.")
    logs_a, logs_b = np.log(a), np.log(b)
    pairs = logs_a - logs_b
    low, high = interval(pairs, seed)
    # Each variant against itself: what the same analysis makes of neighbouring blocks that differ in nothing.
    itself = [interval(np.diff(logs), seed) for logs in (logs_a, logs_b)]
    half_width = max(high - low for low, high in itself) / 2
    return Effect(math.exp(pairs.mean()), math.exp(low), math.exp(high), math.expm1(half_width), len(pairs))


def interval(values: Array, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of `values` [n], 10,000 resamples.

    Plain percentile intervals are too narrow for a dozen values; the expanded percentile interval (Hesterberg 2015,
    'What teachers should know about the bootstrap', section 4.3) takes wider percentiles, by Student's t and n/(n-1).
    """
    n = len(values)
    if n < 2:
        raise LfError("an interval needs at least 2 values; time more blocks.")
    from scipy import stats  # a second's import, which each rank that only sums up its times would pay

    tail = stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    drawn = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    low, high = np.quantile(np.asarray(values)[drawn].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def spread(a: Sequence[float], b: Sequence[float]) -> float:
    """By what share a thing may differ from itself (0.02 is 2 %): A/A, from pairs of measurements of the same.

    The farther end of the 95 % interval of the mean log-ratio, so that chance and drift count both; for a single pair
    its ratio. LfError where there are no pairs.
    """
    if not len(a) or len(a) != len(b):
        raise LfError(f"an A/A spread needs pairs of measurements; there are {len(a)} and {len(b)}.")
    logs = np.log(a) - np.log(b)
    return math.expm1(max(map(abs, interval(logs) if len(logs) > 1 else logs)))


@dataclass(frozen=True)
class Comparison:
    """Seconds a call in each block of A and of B, in the order of running, and the effect of going from A to B."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    effect: Effect


def interleave(a: Callable[[], object], b: Callable[[], object], blocks: int = 8, *, calls: int = 5, warmup: int = 1,
               settle: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.perf_counter,
               seed: int = 0) -> Comparison:
    """Time A and B in the order A B B A A B B A ...: `blocks` blocks of each, `calls` calls a block, its median counts.

    `settle` runs before each reading of the clock (torch.cuda.synchronize for work on a GPU); each side is called
    `warmup` times beforehand. LfError for fewer than 3 blocks or no calls.
    """
    if blocks < LEAST_PAIRS or calls < 1:
        raise LfError(f"interleave needs blocks >= {LEAST_PAIRS} and calls >= 1, got blocks={blocks}, calls={calls}.")

    def block(work: Callable[[], object]) -> float:
        times = []
        for _ in range(calls):
            settle()
            start = clock()
            work()
            settle()
            times.append(clock() - start)
        return float(np.median(times))

    for work in (a, b):
        for _ in range(warmup):
            work()
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(blocks):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            times[side].append(block((a, b)[side]))
    return Comparison(tuple(times[0]), tuple(times[1]), effect(*times, seed=seed))
