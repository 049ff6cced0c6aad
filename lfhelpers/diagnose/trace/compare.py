"""What changed between two traces: the verdict, the step, each part, each group of kernels.

Speed-ups are quoted by medians and by means: they differ where few steps are slow. Two single recordings have no
interval, so a small difference may be chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lfhelpers.diagnose.trace.report import Diagnosis, TraceReport
from lfhelpers.diagnose.trace.verdict import REMEDIES

SAME = 0.02


@dataclass(frozen=True)
class TraceComparison:
    """Two diagnoses side by side."""

    a: Diagnosis
    b: Diagnosis

    @property
    def by_median(self) -> float:
        """Speed-up of b over a: by the host's own steps where both mark them, else by the windows."""
        a, b = self._steps("median")
        return a / b

    @property
    def by_mean(self) -> float:
        """The same by means."""
        a, b = self._steps("mean")
        return a / b

    @property
    def verdict(self) -> str:
        """What changed, in a sentence."""
        ratio = self.by_median
        change = "as fast as" if abs(ratio - 1) < SAME else f"{ratio:.2f} times as fast as"
        sentence = f"b is {change} a by medians ({self.by_mean:.2f} by means)"
        before, after = self.a.main.verdict.bound, self.b.main.verdict.bound
        if before is None or after is None:
            return f"{sentence}; no verdict on what bound them, the evidence is too thin."
        if before == after:
            return f"{sentence}; still {_bound(after)}{self._moved(before)}."
        first = "no longer" if before not in ("compute", "unknown") else "it was"
        return f"{sentence}; {first} {_bound(before)}, now {_bound(after)}{self._moved(before)}."

    def rows(self) -> list[dict[str, Any]]:
        """A row a part of either, in ms of the mean step; `saved` is a - b."""
        a, b = ({report.titled(part): ms for part, ms in report.ms.items()} for report in (self.a.main, self.b.main))
        return _side_by_side("part", a, b, whole=True)

    def group_rows(self) -> list[dict[str, Any]]:
        """The same by group of kernels."""
        a, b = ({group.name: group.ms for group in report.groups} for report in (self.a.main, self.b.main))
        return _side_by_side("kernels", a, b, whole=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, as diagnose.trace.schema describes it."""
        return {"verdict": self.verdict, "speedup": {"by_median": self.by_median, "by_mean": self.by_mean},
                "parts": self.rows(), "groups": self.group_rows(), "a": self.a.as_dict(), "b": self.b.as_dict()}

    def _steps(self, kind: str) -> tuple[float, float]:
        a, b = self.a.main.step_ms, self.b.main.step_ms
        marked = a[f"host_{kind}"] is not None and b[f"host_{kind}"] is not None
        key = f"host_{kind}" if marked else kind
        return float(a[key] or 0), float(b[key] or 0)

    def _moved(self, bound: str) -> str:
        """How the share of what bound a has changed."""
        shares = [cause.share for report in (self.a.main, self.b.main) for cause in report.verdict.causes
                  if cause.name == bound]
        return f" ({bound}: {shares[0]:.0f} and {shares[1]:.0f} % of the step)" if len(shares) == 2 else ""


def _bound(name: str) -> str:
    if name in ("compute", "unknown"):
        return "compute-bound" if name == "compute" else "waiting for a cause that its trace doesn't hold"
    return f"{REMEDIES[name][1].lower()}-bound"


def _side_by_side(title: str, a: Mapping[str, float], b: Mapping[str, float], whole: bool) -> list[dict[str, Any]]:
    rows = [{title: name, "a ms": round(a.get(name, 0.0), 3), "b ms": round(b.get(name, 0.0), 3),
             "saved ms": round(a.get(name, 0.0) - b.get(name, 0.0), 3)} for name in dict.fromkeys([*a, *b])]
    if whole:
        rows.append({title: "whole step", "a ms": round(sum(a.values()), 3), "b ms": round(sum(b.values()), 3),
                     "saved ms": round(sum(a.values()) - sum(b.values()), 3)})
    return rows


def of_devices(a: TraceReport, b: TraceReport) -> str | None:
    """A note where the two aren't of one kind of device."""
    if a.gpu != b.gpu:
        return "one trace holds GPU work and the other doesn't: their parts aren't the same"
    if a.trace.gpu != b.trace.gpu:
        return f"the traces are of different GPUs: {a.trace.gpu or 'unknown'} and {b.trace.gpu or 'unknown'}"
    return None
