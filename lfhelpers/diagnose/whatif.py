"""What a step would take if its parts were others: three things beside each other, begun at what a run has measured.

A step computes, its ranks exchange gradients, its loader makes the next batch. Each pair is as long as both together,
less the share of the shorter one that lies beside the longer one. So a part that is hidden costs nothing until it
becomes the longest, which shares of the step can't tell (diagnose.timelines has the same rule for ablations).

What a run's clock can't see is taken at its least: the time of a loader that keeps up, and of an exchange that hides. A
loader that doesn't keep up is taken to work ahead in full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lfhelpers.diagnose.report import StepReport
from lfhelpers.diagnose.timelines import beside

STARVED = 2.0
"""Percent of the step spent in waiting for data from which on the loader sets the pace."""
PACE = {"data_wait": "the loader", "computation": "computation", "communication": "the exchange"}


@dataclass(frozen=True)
class WhatIf:
    """A step of `micro` samples, `samples` of them in all ranks and micro-batches together; milliseconds of its parts.

    data_ms: what the loader needs for a step. compute_ms: with `fixed_ms` of it, such as the update, that don't grow
    with the micro-batch. exchange_ms: of gradients, of which `hidden` (0..1) may lie beside computation. ahead: the
    share of the loader's time that may lie beside the step; 0 where the trainer loads by itself.
    """

    micro: int
    samples: int
    data_ms: float
    compute_ms: float
    fixed_ms: float
    exchange_ms: float
    hidden: float
    ahead: float

    @classmethod
    def of(cls, report: StepReport) -> WhatIf:
        """A run's step as it was; `step_ms` is its mean step."""
        ms, batch = report.ms, report.job.batch
        exchange = ms["communication"]
        fixed = ms["optimizer"] + ms["other"]
        compute = report.compute_ms + ms["other"] + ms["host_to_device"]
        alone = report.job.data.loader != "synthetic" and report.job.data.workers == 0
        starved = report.percent["data_wait"] > STARVED and not alone
        data = ms["data_wait"] + (compute + exchange if starved else 0.0)
        return cls(batch.micro, batch.micro * batch.accumulate * report.ranks, data, compute, fixed, exchange, 0.0,
                   1.0 if starved else 0.0)

    @property
    def parts(self) -> dict[str, float]:
        """The step in milliseconds: computation, and what of exchange and loader isn't hidden."""
        step = beside(self.compute_ms, self.exchange_ms, self.hidden)
        return {"data_wait": beside(step, self.data_ms, self.ahead) - step, "computation": self.compute_ms,
                "communication": step - self.compute_ms}

    @property
    def step_ms(self) -> float:
        """The whole step."""
        return sum(self.parts.values())

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together."""
        return 1e3 * self.samples / self.step_ms if self.step_ms else 0.0

    @property
    def bound(self) -> str:
        """What sets the pace: the loader, the exchange or computation."""
        parts = self.parts
        if self.ahead * self.data_ms > self.compute_ms + parts["communication"]:
            return "the loader"
        return PACE[max(parts, key=lambda part: parts[part])]

    def with_micro(self, micro: int) -> WhatIf:
        """The same step with another micro-batch: loader and computation grow with it, update and exchange don't.

        A device that is not full would do better: see measure.pace for its knee.
        """
        if micro == self.micro:
            return self
        more = micro / self.micro
        return replace(self, micro=micro, samples=round(self.samples * more), data_ms=self.data_ms * more,
                       compute_ms=self.fixed_ms + (self.compute_ms - self.fixed_ms) * more)
