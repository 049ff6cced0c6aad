"""Figures of quality beside their floor and ceiling: a number alone doesn't say whether a model looks.

A captioner that always says the commonest sentence, an answerer that knows the commonest answer to each kind of
question, and a policy that sees the state alone all score something. The truth and the expert are the ceilings. BLEU-4
and CIDEr are `workloads.vla.scores`, which agree with sacrebleu and pycocoevalcap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lfhelpers.workloads.vla.scores import bleu4, cider

__all__ = ["FIGURES", "Bounded", "bleu4", "bounded", "cider", "lines"]

FIGURES: dict[str, tuple[str, str, float | str]] = {
    "success": ("success in the closed loop", "success_blind", "success_expert"),
    "action_mse": ("action MSE, open loop", "action_mse_blind", 0.0),
    "question_accuracy": ("questions answered rightly", "question_accuracy_floor", 1.0),
    "bleu4": ("caption BLEU-4", "bleu4_floor", 1.0),
    "cider": ("caption CIDEr", "cider_floor", 10.0),
}
"""Of each figure: what it is, the figure that is its floor, and its ceiling or the figure that is."""


class Bounded(NamedTuple):
    """One figure between what needs no looking and what can't be bettered."""

    name: str
    value: float
    floor: float
    ceiling: float

    @property
    def share(self) -> float:
        """How much of the way from floor to ceiling was made; below 0 for worse than not looking."""
        return (self.value - self.floor) / (self.ceiling - self.floor) if self.ceiling != self.floor else 0.0


def bounded(figures: Mapping[str, float]) -> list[Bounded]:
    """The figures of an evaluation that have bounds, in the order of FIGURES."""
    found = []
    for name, (_, floor, ceiling) in FIGURES.items():
        if name in figures and floor in figures:
            top = figures[ceiling] if isinstance(ceiling, str) else ceiling
            found.append(Bounded(name, figures[name], figures[floor], top))
    return found


def lines(figures: Mapping[str, float]) -> str:
    """A table in plain text: figure, value, floor, ceiling, and the share of the way between them."""
    head = f"{'figure':<28} {'value':>8} {'floor':>8} {'ceiling':>8} {'of the way':>10}"
    rows = [f"{FIGURES[one.name][0]:<28} {one.value:>8.3f} {one.floor:>8.3f} {one.ceiling:>8.3f} {one.share:>10.0%}"
            for one in bounded(figures)]
    return "\n".join([head, *rows])
