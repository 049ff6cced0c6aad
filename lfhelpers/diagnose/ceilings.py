"""What could each lever win? A range for each, told before it is pulled: [realistic, ideal].

Ideal is the step with the cause gone; realistic leaves what nobody gets rid of: CPU time of decoding, the bytes of an
update, part of the launches. Levers are combined by running the step again with all of them (diagnose.timelines), never
by multiplying: what one wins another can't win again, and what hid behind the first shows once that is gone. Where both
an ablation and a trace are there, the ablation's times count and the trace says where inside; where they differ by more
than a tenth of the step that is printed, not averaged.

What no evidence shows (wasted work of the model itself, a better kernel) gets no ceiling: only an A/B tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from lfhelpers.diagnose.report import aligned
from lfhelpers.diagnose.timelines import Keep, Timeline
from lfhelpers.errors import LfError, nearest


@dataclass(frozen=True)
class Remedy:
    """What removes a cause: in words, which levers of the table do it, and what usually stays of the cause."""

    cause: str
    words: str
    head: str
    levers: tuple[str, ...] = ()
    stays: float = 0.0


REMEDIES = {remedy.cause: remedy for remedy in (
    Remedy("data", "a loader that is never waited for", "Data",
           ("workers do all preprocessing", "measured loader")),
    Remedy("synchronisation", "no reads by the host", "Synchronisation", ("no read in the step",)),
    # A captured step still is launched, and its inputs copied in; compilation alone leaves a third of the launches.
    Remedy("host", "CUDA graphs or compilation", "Host", ("CUDA graph", "compiled blocks"), 0.35),
    Remedy("loops", "tensor operations in place of loops", "Loop", ("compiled blocks",)),
    # Half the bytes halve at least what shows of them.
    Remedy("communication", "hidden or smaller exchange", "Communication",
           ("large buckets", "gradients in place", "lean DDP", "bf16 gradients on the wire", "PowerSGD", "1-bit Adam"),
           0.5),
    Remedy("late rank", "the slowest rank as fast as the others", "Straggler"),
    Remedy("copies", "pinned, asynchronous copies", "Copy", ("asynchronous copy",)),
    Remedy("optimizer", "a fused optimizer", "Optimizer", ("fused AdamW", "sharded optimizer"), 0.5),
    # A chain of pointwise kernels reads and writes memory for each; fused, once: two in three go at best.
    Remedy("pointwise", "fused pointwise kernels", "Memory", ("compiled blocks",), 0.6),
    Remedy("python", "less Python between operators", "Python", ("compiled blocks",), 0.8),
)}
IDEAL = {"pointwise": 0.33}
"""What stays even ideally; 0 where nothing is said."""
BOUND = 1.1
"""Realistic speed-up from which on a cause gives the verdict its name."""
NAMED = 1.02
"""A ceiling below it is not worth a name in a verdict."""


@dataclass(frozen=True)
class Ceiling:
    """What removing a cause wins, as speed-ups: at least `realistic` if it is done well, and never above `ideal`.

    `then` is the cause that is the next one to look at, None where none is left.
    """

    cause: str
    remedy: str
    levers: tuple[str, ...]
    realistic: float
    ideal: float
    then: str | None

    def row(self) -> dict[str, Any]:
        """For a table."""
        return {"remedy": self.remedy, "realistic": f"{self.realistic:.2f}x", "ideal": f"{self.ideal:.2f}x",
                "next": self.then or "computation", "levers": ", ".join(self.levers)}


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of a step, the highest realistic one first; `source` says what they were read off."""

    timeline: Timeline
    source: str
    notes: tuple[str, ...] = ()
    _runs: dict[frozenset[tuple[str, float]], float] = field(default_factory=dict, compare=False, repr=False)
    """Speed-ups that are known already, by what is left: a run of a long trace takes a tenth of a second."""

    def __iter__(self) -> Iterator[Ceiling]:
        return iter(self.listed)

    @cached_property
    def listed(self) -> tuple[Ceiling, ...]:
        """One a cause that the evidence knows."""
        found = [self.of(cause) for cause in self.timeline.causes if cause in REMEDIES]
        return tuple(sorted(found, key=lambda ceiling: (-ceiling.realistic, -ceiling.ideal)))

    def of(self, cause: str) -> Ceiling:
        """The ceiling of one cause. Raises LfError for one that the evidence doesn't know."""
        if cause not in self.timeline.causes or cause not in REMEDIES:
            raise LfError(f"nothing is known of the cause '{cause}'; {nearest(cause, self.timeline.causes)}")
        remedy = REMEDIES[cause]
        return Ceiling(cause, remedy.words, remedy.levers, self.combined([cause], "realistic"),
                       self.combined([cause], "ideal"), self.next_after([cause]))

    def combined(self, causes: Sequence[str], end: str = "realistic") -> float:
        """The speed-up with all of these causes dealt with, by one run of the step; `end`: realistic or ideal."""
        return self._speedup({cause: self._left(cause, end) for cause in causes})

    def next_after(self, causes: Sequence[str]) -> str | None:
        """The cause whose removal wins most once these are gone; None where none wins anything worth a name."""
        gone = {cause: self._left(cause, "ideal") for cause in causes}
        before = self._speedup(gone)
        if before < NAMED:  # with so little gone the step is what it was, and so is what comes next
            gone, before = {}, 1.0
        wins = {cause: self._speedup(gone | {cause: self._left(cause, "realistic")}) / before
                for cause in self.timeline.causes if cause in REMEDIES and cause not in causes}
        best = max(wins, key=lambda cause: wins[cause], default=None)
        return best if best is not None and wins[best] >= NAMED else None

    def path(self) -> list[tuple[str, float]]:
        """(cause, speed-up with all up to it) in the order in which each next one wins most, while it wins anything."""
        steps: list[tuple[str, float]] = []
        while True:
            done = [cause for cause, _ in steps]
            now = self.combined(done) if done else 1.0
            rest = {cause: self.combined([*done, cause]) for cause in self.timeline.causes
                    if cause in REMEDIES and cause not in done}
            best = max(rest, key=lambda cause: rest[cause], default=None)
            if best is None or rest[best] < NAMED * now:
                return steps
            steps.append((best, rest[best]))

    @property
    def verdict(self) -> str:
        """What the step is bound by, and what each remedy could give, in a sentence."""
        first = self.listed[0] if self.listed else None
        if first is None or first.realistic < BOUND:
            head = f"Compute-bound: no stall of the step of {self.timeline.base_ms:.1f} ms is worth a remedy by itself"
        else:
            share = 100 * (1 - 1 / first.ideal)
            head = f"{REMEDIES[first.cause].head}-bound: of each step of {self.timeline.base_ms:.1f} ms, " \
                   f"{share:.0f} % would go with {first.remedy}"
        gains = self.gains()
        return f"{head}; {gains}." if gains else f"{head}."

    def gains(self, most: int = 3) -> str:
        """'CUDA graphs or compilation could give 1.4x to 1.8x; a fused optimizer 1.1x'; "" where nothing is worth it.

        By what they give ideally: a verdict names what could be, and the table what is likely.
        """
        named = [ceiling for ceiling in sorted(self, key=lambda ceiling: -ceiling.ideal) if ceiling.ideal >= NAMED]
        return "; ".join(f"{one.remedy} could give {_range(one)}" for one in named[:most])

    def rows(self) -> list[dict[str, Any]]:
        """For a table: a row a ceiling that is worth a name."""
        return [ceiling.row() for ceiling in self if ceiling.ideal >= NAMED]

    def table(self) -> str:
        """As plain text: the verdict, a line a ceiling, the way through them, notes."""
        lines = [self.verdict, f"(by {self.source})", *aligned(self.rows())]
        steps = [f"{REMEDIES[cause].words} {speedup:.2f}x" for cause, speedup in self.path()]
        lines += [f"one after the other, realistically: {', then '.join(steps)}"] if steps else []
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, as diagnose.trace.schema describes it."""
        return {"source": self.source, "step_ms": self.timeline.base_ms,
                "ceilings": [asdict(ceiling) for ceiling in self],
                "path": [{"cause": cause, "speedup": speedup} for cause, speedup in self.path()],
                "notes": list(self.notes)}

    def _left(self, cause: str, end: str) -> float:
        """The share of a cause that stays."""
        ideal = IDEAL.get(cause, 0.0)
        known: Keep = self.timeline.realistic
        return ideal if end == "ideal" else max(ideal, known.get(cause, REMEDIES[cause].stays))

    def _speedup(self, keep: Mapping[str, float]) -> float:
        left = frozenset(keep.items())
        if left not in self._runs:
            self._runs[left] = self.timeline.base_ms / max(self.timeline.ms(keep), 1e-3 * self.timeline.base_ms)
        return self._runs[left]


def _range(ceiling: Ceiling) -> str:
    low, high = f"{ceiling.realistic:.2f}", f"{ceiling.ideal:.2f}"
    return f"{high}x" if low == high else f"{low}x to {high}x"
