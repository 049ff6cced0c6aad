"""Is the quality of two recipes the same? Two one-sided tests over paired seeds, with a margin fixed beforehand.

A p above 0.05 in an ordinary test says only that nothing was shown; with few seeds that is certain to happen. Here the
claim is turned round (Schuirmann 1987): the difference is assumed to be as large as the margin, and both one-sided
tests must refute that. The price is runs: below a certain number of seeds nothing can be shown, so the power is stated
beside each verdict. Pairs share first weights and the order of data, which makes their differences small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import integrate, stats

from lfhelpers.errors import LfError

ALPHA = 0.05
"""Level of each one-sided test; the interval that belongs to it has 90 %."""
LEAST = 3


@dataclass(frozen=True)
class Equivalence:
    """Mean difference (ours less theirs, in the figure's unit) with its 90 % interval, against a margin of that unit.

    `p` is the larger of the two one-sided tests', `sd` the scatter of a pair's difference.
    """

    difference: float
    low: float
    high: float
    margin: float
    p: float
    sd: float
    n: int

    @property
    def power(self) -> float:
        """The chance of showing equality, if there is no difference but a scatter as large as the one seen."""
        return power(self.n, self.margin, self.sd)

    @property
    def passes(self) -> bool:
        """Whether the whole interval lies inside the margin."""
        return -self.margin < self.low and self.high < self.margin

    @property
    def verdict(self) -> str:
        """`equal within the margin`, or `not shown`: which does not say that they differ."""
        return "equal within the margin" if self.passes else "not shown"

    def __str__(self) -> str:
        return (f"difference {self.difference:+.4g} (90 % {self.low:+.4g} to {self.high:+.4g}), margin "
                f"±{self.margin:.4g}, n={self.n} pairs, power {self.power:.0%}: {self.verdict}")


def tost(theirs: Sequence[float], ours: Sequence[float], margin: float) -> Equivalence:
    """Test whether two recipes' figures, one pair a seed, differ by less than `margin` (both in the figure's unit).

    Raises LfError for fewer than 3 pairs, a figure that is no number, or a margin that is not above 0.
    """
    if len(theirs) != len(ours) or len(ours) < LEAST:
        raise LfError(f"equality needs at least {LEAST} seeds run by both recipes; there are {len(theirs)} and "
                      f"{len(ours)} figures.")
    if not margin > 0:
        raise LfError(f"a margin of {margin} can't be met; give the largest difference that does no harm, above 0.")
    pairs = np.asarray(ours, float) - np.asarray(theirs, float)
    if not np.isfinite(pairs).all():
        raise LfError("a run's figure is not finite, so nothing can be said about its quality; look at that run first.")
    n, mean, sd = len(pairs), float(pairs.mean()), float(pairs.std(ddof=1))
    error = sd / math.sqrt(n)
    half = float(stats.t.ppf(1 - ALPHA, n - 1)) * error
    p = float(stats.t.sf((margin - abs(mean)) / error, n - 1)) if error else float(abs(mean) >= margin)
    return Equivalence(mean, mean - half, mean + half, margin, p, sd, n)


def power(n: int, margin: float, sd: float, truth: float = 0.0) -> float:
    """The chance that `n` pairs show equality, their differences scattering by `sd` about `truth`.

    Exact: the normal chance that the mean is far enough inside the margin, over the distribution of the seen scatter
    (Phillips 1990). With `truth` at the margin it is at most 0.05: the chance of overlooking such a loss.
    """
    if sd == 0:
        return float(abs(truth) < margin)
    error, free = sd / math.sqrt(n), n - 1
    t = float(stats.t.ppf(1 - ALPHA, free))

    def chance(ratio: float) -> float:
        """Of passing, where the seen scatter is `ratio` times the true one; weighted by that ratio's density."""
        room = margin - t * error * ratio
        if room <= 0:
            return 0.0
        inside = stats.norm.cdf((room - truth) / error) - stats.norm.cdf((-room - truth) / error)
        return float(inside * stats.chi.pdf(ratio * math.sqrt(free), free) * math.sqrt(free))

    most = float(stats.chi.isf(1e-12, free)) / math.sqrt(free)  # up to a far wider margin, quad would miss the density
    return float(integrate.quad(chance, 0, min(margin / (t * error), most), limit=200)[0])


def seeds(margin: float, sd: float, wanted: float = 0.8, most: int = 100) -> int | None:
    """The fewest pairs that show equality with at least the chance `wanted`; None where `most` do not."""
    return next((n for n in range(LEAST, most + 1) if power(n, margin, sd) >= wanted), None)
