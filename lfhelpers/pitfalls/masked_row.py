"""An attention row in which every key is masked: a softmax over nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lfhelpers.pitfalls.base import ALONE, About
from lfhelpers.recipe import PrecisionFields
from lfhelpers.train.nonfinite import examine
from lfhelpers.train.precision import Precision

ABOUT = About(
    "gradients are nan from one batch on, though the data are clean",
    "a sample is padded throughout; its scores are all minus infinity, and softmax gives 0 / 0",
    "finite fill and zeroed rows, or at least one key that may be seen; check mask.any(-1) before",
    "gradients that are not finite [%]")


class Attention(nn.Module):
    """One head; `safe` fills with a finite number and zeroes the rows that see nothing."""

    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.embed, self.query, self.key = (nn.Linear(8, 8) for _ in range(3))
        self.safe = safe

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [B, T, 8], mask bool [B, T] of what may be seen."""
        x = self.embed(x)
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        hidden = ~mask[:, None, :]
        if not self.safe:
            return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ x
        return (scores.masked_fill(hidden, -1e9).softmax(-1) @ x) * mask.any(-1)[:, None, None]


class Masked:
    """The loss of such a model, as a workload gives it."""

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor], draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Sum of squares, and the number of samples."""
        return model(batch["x"], batch["mask"]).square().sum(), torch.tensor(float(len(batch["x"])))


def break_it() -> float:
    """Percent of gradients, with one sample masked throughout."""
    return _share(Attention(safe=False))


def detect(broken: bool = True) -> str:
    """Where the guard finds the first number that isn't finite; empty for none."""
    precision = Precision(PrecisionFields(mode="fp32"), ALONE.device)
    workload, model = Masked(), Attention(safe=not broken)
    found = examine(workload, model, precision, _batch(), {}, 3)  # type: ignore[arg-type]  # it needs loss alone
    return found.text if found else ""


def fix_it() -> float:
    """The same where such rows are zeroed."""
    return _share(Attention(safe=True))


def _batch() -> dict[str, Tensor]:
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    return {"x": torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)), "mask": mask}


def _share(model: Attention) -> float:
    Masked().loss(model, _batch(), {})[0].backward()
    grads = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return 100 * float((~torch.isfinite(grads)).float().mean())
