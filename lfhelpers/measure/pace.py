"""Throughput over micro-batch: a line with a floor, whose knee says how many samples a step needs to be worth it.

Below the knee the host launches kernels more slowly than the device runs them, and a larger micro-batch is free; above
it a step takes what its samples take. So more than a few times the knee gains little, and costs memory that
recomputation would have to pay for. The fit holds within one set of kernels: where larger shapes get better ones, or
the allocator begins to retry, its `error` shows that the line isn't one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lfhelpers.errors import LfError

NEAR = 0.95
"""Share of the best throughput that a micro-batch must reach to be called enough."""


class Pace(NamedTuple):
    """Milliseconds of a step over its micro-batch b: the larger of `host` and `fixed` + `per_sample` b.

    host is 0 where no point was bound by the host, per_sample 0 where all were. error: the largest relative miss.
    """

    host: float
    fixed: float
    per_sample: float
    error: float

    def step_ms(self, micro: float) -> float:
        """Predicted milliseconds of a step with one micro-batch."""
        return max(self.host, self.fixed + self.per_sample * micro)

    def samples_per_s(self, micro: float) -> float:
        """Predicted samples a second and rank."""
        return 1e3 * micro / self.step_ms(micro)

    @property
    def knee(self) -> float:
        """The micro-batch from which the device sets the pace; 0: always, infinite: never among those measured."""
        return max(0.0, (self.host - self.fixed) / self.per_sample) if self.per_sample else math.inf

    def enough(self, largest: int) -> int:
        """The smallest micro-batch up to `largest` with 95 % of the best throughput among them."""
        best = max(map(self.samples_per_s, range(1, largest + 1)))
        return next(micro for micro in range(1, largest + 1) if self.samples_per_s(micro) >= NEAR * best)

    def sentence(self) -> str:
        """The knee in words."""
        if math.isinf(self.knee):
            return f"the host sets the pace throughout: {self.host:.3g} ms a step, whatever the micro-batch"
        above = f"each sample takes {self.per_sample:.3g} ms, so at most {1e3 / self.per_sample:,.0f} samples/s"
        if not self.knee:
            return f"the device sets the pace throughout: {above}"
        return f"below {self.knee:.1f} samples the host sets the pace, {self.host:.3g} ms a step; above, {above}"


def pace(points: Mapping[int, float]) -> Pace:
    """Fit step milliseconds {micro-batch: ms} with max(host, fixed + per sample x micro-batch), by relative error.

    The smallest ones that the host binds are tried in every number. Raises LfError for fewer than three points.
    """
    if len(points) < 3:
        raise LfError(f"{len(points)} micro-batches don't tell a floor from a slope; measure at least three.")
    micro = np.array(sorted(points), dtype=float)
    ms = np.array([points[int(each)] for each in micro])
    flat = Pace(float(np.exp(np.log(ms).mean())), 0.0, 0.0, math.nan)
    candidates = [flat, *(_line(micro, ms, bound) for bound in range(len(micro) - 1))]
    misses = [np.abs([each.step_ms(b) / t - 1 for b, t in zip(micro, ms, strict=True)]) for each in candidates]
    # the squares decide, and among equals the one with the fewest parts
    chosen = min(range(len(candidates)), key=lambda index: (round(float((misses[index] ** 2).sum()), 12), index))
    return candidates[chosen]._replace(error=float(misses[chosen].max()))


def _line(micro: Any, ms: Any, bound: int) -> Pace:
    """The fit in which the first `bound` points are the host's, and the others lie on the line."""
    host = float(np.exp(np.log(ms[:bound]).mean())) if bound else 0.0
    x, weight = micro[bound:], 1 / ms[bound:]
    (fixed, slope), *_ = np.linalg.lstsq(np.stack([weight, x * weight], 1), np.ones(len(x)), rcond=None)
    return Pace(host, float(fixed), max(0.0, float(slope)), math.nan)


def picture(points: Mapping[int, float], fit: Pace, largest: int | None = None) -> dict[str, Any]:
    """Throughput over micro-batch, as data for a chart: `measured` and `fitted` [(micro, samples/s)], knee, sentence.

    points: {micro-batch: ms of a step}. The curve reaches to `largest`, the largest micro-batch that fits, if given.
    """
    end = max(largest or 0, max(points))
    knee = fit.knee if math.isfinite(fit.knee) else None
    grid = sorted({*np.geomspace(min(points), end, 40), *points, *([knee] if knee and knee <= end else [])})
    return {"measured": [(micro, 1e3 * micro / ms) for micro, ms in sorted(points.items())],
            "fitted": [(float(micro), fit.samples_per_s(micro)) for micro in grid],
            "knee": knee, "largest": largest, "enough": fit.enough(end), "sentence": fit.sentence()}
