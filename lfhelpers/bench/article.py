"""What others claim: the article's before/after table, and the stages that LoongForge has published.

They are claims, not measurements of ours, and the two are not of one system: the article's table is of 64 GPUs and
images a second that the published model can't reach on them; LoongForge's stages are of one host with 8 A800. So only
ratios are compared, never rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ARTICLE = "the article: 8 hosts with 8 A100-80GB each, 128 samples a step and GPU"
PER_GPU, TOTAL, STEP_TIME, TO_TARGET, BUSY, EXCHANGE, QUALITY = (
    "samples/s and GPU", "samples/s, all GPUs", "ms a step", "time to the target quality", "GPU utilisation",
    "share of communication", "quality")
"""The lines of the article's table."""


@dataclass(frozen=True)
class Claim:
    """A line of the article's table: before and after in `unit`, and in which sense they are a claim."""

    figure: str
    before: float | None
    after: float | None
    unit: str
    sense: Literal["higher", "shorter", "level above", "level below", "equal"]
    """`higher`, `shorter`: the ratio is claimed; `level ..`: where the figure ends; `equal`: that it does not change.
    """
    ranks: bool = False
    """Nothing of it can be seen on one GPU."""

    @property
    def ratio(self) -> float | None:
        """How many times better after than before; None where no ratio is claimed."""
        if self.before is None or self.after is None or self.sense not in ("higher", "shorter"):
            return None
        return self.after / self.before if self.sense == "higher" else self.before / self.after


CLAIMS = (
    Claim(PER_GPU, 125, 288, "samples/s", "higher"),
    Claim(TOTAL, 8000, 18432, "samples/s", "higher", ranks=True),
    Claim(STEP_TIME, 1024, 445, "ms", "shorter"),
    Claim(TO_TARGET, 14, 6.5, "days", "shorter"),
    Claim(BUSY, 68, 94, "%", "level above"),
    Claim(EXCHANGE, 15, 5, "%", "level below", ranks=True),
    Claim(QUALITY, None, None, "", "equal"),
)


@dataclass(frozen=True)
class Stage:
    """A stage of LoongForge's GR00T N1.6, cumulative: how many times its baseline (LeRobot's loop) it is."""

    name: str
    ratio: float
    levers: tuple[str, ...]
    """The ladder's levers that are its like; our rung is the last of them that was climbed."""


STAGES = (
    Stage("input and output", 1.41, ("workers do all preprocessing", "asynchronous copy")),
    Stage("+ communication beside computation", 1.59, ("lean DDP", "no read in the step")),
    Stage("+ a CUDA graph of each micro-batch", 2.31, ("compiled blocks", "CUDA graph")),
)
STAGES_MICRO = 16
STAGES_ON = f"LoongForge: 8 A800-80GB, {STAGES_MICRO} samples a step and GPU, against LeRobot's loop"


def less_time(ratio: float) -> float:
    """By how many percent time falls where throughput is `ratio` times what it was: 2.3 times is 56.5 % less."""
    return 100 * (1 - 1 / ratio)
