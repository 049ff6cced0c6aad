"""What a bucket plan would cost, without running it: gradients become ready one by one, buckets travel one by one.

DDP fills buckets in the order in which gradients became ready in the first step, closes one as soon as it holds its
limit, and sends them strictly in that order. So a plan's cost follows from three measurements: when each gradient is
ready, what a message of a size costs, and by how much compute slows while gradients travel beside it. Large buckets
use the link well; but the last bucket can't leave before the last gradient is there, and nothing hides it: the best
plans are large in the middle and small at the end. What is left out: buckets that travel beside each other, and ranks
that wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

MB = 2**20
DEFAULT = (1.0, 25.0)
"""torch's own limits in MiB: the first bucket, and every other one."""
FIRST_MB = 4.0
"""The first bucket where one size is given for all: it is full early, so the exchange starts early."""


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient: its bytes, when it is ready (from the beginning of the step), and its dtype.

    Buckets hold one dtype each.
    """

    name: str
    size: int
    ready_ms: float
    dtype: str = "float32"


@dataclass(frozen=True)
class Sent:
    """One bucket's way: ready when its last gradient is, then it starts once the link is free; milliseconds."""

    size: int
    gradients: int
    ready_ms: float
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Outcome:
    """A simulated forward and backward; milliseconds from their beginning.

    pass_ms: without any exchange. compute_ms: with what the exchange slows computation by. end_ms: gradients are there.
    """

    buckets: tuple[Sent, ...]
    pass_ms: float
    compute_ms: float
    end_ms: float

    @property
    def exposed_ms(self) -> float:
        """Exchange that computation doesn't hide."""
        return max(0.0, self.end_ms - self.compute_ms)

    @property
    def added_ms(self) -> float:
        """What a step grows by: exposed exchange, and computation that is slower beside the hidden one."""
        return self.end_ms - self.pass_ms

    @property
    def hidden_ms(self) -> float:
        """Time in which gradients travel beside computation."""
        return sum(max(0.0, min(sent.end_ms, self.compute_ms) - sent.start_ms) for sent in self.buckets)


def assign(gradients: Sequence[Gradient], limits: Sequence[float] = ()) -> list[list[Gradient]]:
    """DDP's buckets for gradients in the order of readiness; `limits` in MiB, the last one repeats, () is torch's own.

    A bucket closes once it holds its limit, so it may hold more, and a tensor is never split. Each dtype has buckets
    and limits of its own; what is not full at the end follows in the order of the dtypes' first gradients.
    Source: compute_bucket_assignment_by_size in torch's reducer, with which a test compares this.
    """
    sizes = [int(limit * MB) for limit in limits or DEFAULT]
    closed: list[list[Gradient]] = []
    filling: dict[str, list[Gradient]] = {}
    place: dict[str, int] = {}
    for gradient in gradients:
        bucket = filling.setdefault(gradient.dtype, [])
        bucket.append(gradient)
        at = place.setdefault(gradient.dtype, 0)
        if sum(each.size for each in bucket) >= sizes[at]:
            closed.append(filling[gradient.dtype])
            filling[gradient.dtype] = []
            place[gradient.dtype] = min(at + 1, len(sizes) - 1)
    return closed + [bucket for bucket in filling.values() if bucket]


def simulate(gradients: Sequence[Gradient], limits: Sequence[float], transfer_ms: Callable[[float], float],
             pass_ms: float, slowing: float = 0.0) -> Outcome:
    """Run a pass whose last gradient is ready after `pass_ms`, with these buckets over a link (measure.link.Link.ms).

    slowing: extra computing time for each unit of time in which gradients travel beside it (0.1: a tenth slower).
    """
    compute, sent, free = _Compute(slowing), list[Sent](), 0.0
    latest = 0.0
    for bucket in assign(gradients, limits):
        latest = max(latest, *(gradient.ready_ms for gradient in bucket))
        ready = compute.reaches(latest)
        start = max(ready, free)
        size = sum(gradient.size for gradient in bucket)
        free = start + transfer_ms(size)
        compute.travelling(start, free)
        sent.append(Sent(size, len(bucket), ready, start, free))
    done = compute.reaches(pass_ms)
    return Outcome(tuple(sent), pass_ms, done, max(done, free))


def optimum(gradients: Sequence[Gradient], transfer_ms: Callable[[float], float],
            slack: float = 0.005) -> tuple[float, ...]:
    """The limits in MiB of the plan that ends first, of all plans there are, but for `slack`; () for no gradients.

    Exact for one dtype and a link that slows nothing: the earliest end of the first j gradients is the best over all
    last buckets i..j of max(earliest end of i, ready of j) + transfer. From the end back the largest buckets are then
    taken that still end in time, since each bucket costs a launch that isn't simulated. With several dtypes it is a
    guess, which `simulate` judges.
    """
    before = [0, *accumulate(gradient.size for gradient in gradients)]
    ready = [0.0, *accumulate((gradient.ready_ms for gradient in gradients), max)]

    def journey(begin: int, stop: int) -> float:
        return transfer_ms(before[stop] - before[begin])
    ends = [0.0]
    for stop in range(1, len(before)):
        ends.append(min(max(ends[begin], ready[stop]) + journey(begin, stop) for begin in range(stop)))
    limits, stop, deadline = list[float](), len(gradients), (1 + slack) * ends[-1]
    while stop:
        start = next(begin for begin in range(stop)
                     if max(ends[begin], ready[stop]) + journey(begin, stop) <= deadline)
        limits.append((before[stop] - before[start]) / MB)
        deadline = max(deadline - journey(start, stop), ends[start])  # max: rounding must not make it unreachable
        stop = start
    return tuple(reversed(limits))


class _Compute:
    """How far computation has come by a time, slowed while gradients travel; both only move forward."""

    def __init__(self, slowing: float) -> None:
        self._rate = 1 / (1 + slowing)
        self._time, self._work, self._until = 0.0, 0.0, 0.0  # travelling from `time`, at which `work` is done, to until

    def reaches(self, work: float) -> float:
        """When so many undisturbed milliseconds of work are done."""
        slow = (self._until - self._time) * self._rate
        missing = work - self._work
        return self._time + missing / self._rate if missing <= slow else self._until + missing - slow

    def travelling(self, start: float, end: float) -> None:
        """From start to end, not before the last end, gradients travel."""
        self._time, self._work, self._until = start, self._by(start), end

    def _by(self, time: float) -> float:
        slow = min(time, self._until) - self._time
        return self._work + slow * self._rate + max(0.0, time - self._until)
