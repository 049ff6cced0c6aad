"""Whether a curve of memory keeps rising: the slope over steps, with an interval, and no alarm for warm-up.

Memory rises while a run warms up, jumps when a shape is new, and swings inside a step; none of that is a leak. A leak
goes on. So the samples are cut into blocks, each block counts by its least value (what is held between the swings), the
slope is that of Theil and Sen with its 95 % interval, and the blocks must keep rising up to the last. The price is
patience: fewer than 24 samples are no evidence, and a leak that pauses is missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCKS = 12
LEAST_SAMPLES = 2 * BLOCKS
RISING = 0.8
"""Share of neighbouring blocks that must rise, in the whole curve and in its second half."""

LATE = 0.25
"""Share of what was gained that the second half must have gained; a steady leak gains half of it there."""


@dataclass(frozen=True)
class Growth:
    """Bytes a step with the 95 % interval `low`..`high`, and bytes gained between the first block and the last."""

    slope: float
    low: float
    high: float
    gained: int
    rising: bool
    """Whether the blocks keep rising to the end."""

    def leaks(self, least: int) -> bool:
        """Whether this is a leak of at least `least` bytes so far."""
        return self.rising and self.low > 0 and self.gained >= least

    def __str__(self) -> str:
        return (f"{self.slope / 2**20:+.3g} MiB a step (95 % {self.low / 2**20:.3g} to {self.high / 2**20:.3g}), "
                f"{self.gained / 2**20:.3g} MiB so far")


def rises(held: Sequence[int]) -> bool:
    """Whether the blocks of `held` bytes keep rising, without which nothing leaks; False for too few samples.

    It takes microseconds, and none of `growth`'s imports, which a training loop would stand still for.
    """
    if len(held) < LEAST_SAMPLES:
        return False
    least = np.array([min(held[place] for place in part) for part in _blocks(len(held))])
    up, late = np.diff(least) > 0, least[-1] - least[BLOCKS // 2]
    return bool(up.mean() >= RISING and up[len(up) // 2:].mean() >= RISING and late >= LATE * (least[-1] - least[0]))


def growth(steps: Sequence[int], held: Sequence[int]) -> Growth | None:
    """The growth of `held` bytes over `steps`, both in order; None for fewer than LEAST_SAMPLES samples."""
    if len(steps) < LEAST_SAMPLES:
        return None
    from scipy import stats  # a second's import

    parts = _blocks(len(steps))
    least = np.array([min(held[place] for place in part) for part in parts], dtype=float)
    middle = np.array([float(np.mean([steps[place] for place in part])) for part in parts])
    found = stats.theilslopes(least, middle, 0.95)
    return Growth(float(found[0]), float(found[2]), float(found[3]), int(least[-1] - least[0]), rises(held))


def _blocks(samples: int) -> list[NDArray[np.intp]]:
    return np.array_split(np.arange(samples), BLOCKS)
