"""A step that was not finite, again and alone: from the batch that the guard has kept, with the operator that began it.

The guard writes the micro-batch that it found the cause in, with its draws (nonfinite-step-N-rank-R.pt). Here it passes
through the model once more, eagerly, and every operator of forward and backward is watched: the first that makes a nan
of inputs without one is named, or the first that makes an infinity. Weights are those of the newest checkpoint from
before the step, else those that the run began with; a cause that lies in the weights of that moment is then not seen
again, and it is said so.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lfhelpers import runs
from lfhelpers.errors import LfError
from lfhelpers.measure import formats
from lfhelpers.runs import Run
from lfhelpers.train import checkpoint
from lfhelpers.train.nonfinite import Finding, examine
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import identify
from lfhelpers.workloads.base import Batch, Workload, find


@dataclass(frozen=True)
class Replayed:
    """What came of it: the guard's finding (None where all is finite), and the first operator, empty for none."""

    finding: Finding | None
    operator: str
    backward: bool
    """Whether that was in backward."""
    weights: str

    def __str__(self) -> str:
        if self.finding is None:
            return f"all is finite with {self.weights}: the cause lay in the weights of that step."
        where = f"; the first operator is {self.operator} in {'backward' if self.backward else 'forward'}" \
            if self.operator else ""
        return f"not finite again with {self.weights}, because {self.finding.text}{where}."


def keep(run: Run, step: int, rank: int, batch: Batch, draws: Batch) -> None:
    """Write a micro-batch of step `step` (from 1) into the run's folder, on the host."""
    content = io.BytesIO()
    torch.save({name: {key: value.cpu() for key, value in tensors.items()}
                for name, tensors in (("batch", batch), ("draws", draws))}, content)
    try:
        runs.write_atomic(_path(run, step, rank), content.getvalue())
    except OSError as error:  # what is found is told all the same
        print(f"the batch of step {step} can't be kept: {error.strerror}.", flush=True)


def replay(which: str | os.PathLike[str] | Run, step: int, rank: int = 0) -> Replayed:
    """Run the kept micro-batch of step `step` (from 1) alone.

    Raises LfError where none was kept, where its file is cut, and where the workload is no longer that of the run.
    """
    run = runs.load(which)
    path = _path(run, step, rank)
    if not path.exists():
        kept = ", ".join(sorted(item.name for item in run.path.glob("nonfinite-step-*.pt"))) or "none"
        raise LfError(f"run {run.id} has kept no batch of step {step} on rank {rank}; there is {kept}.")
    device = identify(run.recipe.device).device
    job = formats.settled(run.recipe, device.type)  # as its ranks did, where they ran on several hosts
    workload = find(job)
    torch.manual_seed(job.seed)
    with device:
        model = workload.model()
    weights = _load(run, step, model)
    batch, draws = _read(path, device)
    precision = Precision(job.precision, device)
    try:
        found = examine(workload, model.train(), precision, batch, draws, job.batch.micro * job.batch.accumulate)
        operator = _operator(workload, model, precision, batch, draws)
    except Exception as error:  # whatever an edited workload makes of an old batch
        raise LfError(f"the kept batch of step {step} no longer passes through the workload of run {run.id} "
                      f"({_line(error)}); replay it with the code that the run had.") from error
    return Replayed(found, *operator, weights)


def _operator(workload: Workload, model: nn.Module, precision: Precision, batch: Batch,
              draws: Batch) -> tuple[str, bool]:
    """(the first operator, whether in backward)."""
    watched = First()
    with watched, precision.autocast():
        loss, _ = workload.loss(model, batch, draws)
    with watched:
        watched.backward = True
        loss.backward()
    return watched.result()


class First(TorchDispatchMode):
    """Remembers the first operator that makes a nan of inputs without, and the first that makes an infinity so."""

    def __init__(self) -> None:
        super().__init__()
        self.backward = False
        self._nan: tuple[str, bool] | None = None
        self._infinite: tuple[str, bool] | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [(_has(value, torch.isnan), _has(value, torch.isinf)) for value in _floats((args, kwargs or {}))]
        made = function(*args, **(kwargs or {}))
        if self._nan is None and not any(nan for nan, _ in given):
            for value in _floats(made):
                if _has(value, torch.isnan):
                    self._nan = str(function), self.backward
                elif self._infinite is None and not any(inf for _, inf in given) and _has(value, torch.isinf):
                    self._infinite = str(function), self.backward
        return made

    def result(self) -> tuple[str, bool]:
        """(operator, whether in backward): where the nan began; without a nan where the infinity did."""
        return self._nan or self._infinite or ("", False)


def _floats(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point())


def _has(value: Tensor, what: Any) -> bool:
    return bool(what(value).any())


def _load(run: Run, step: int, model: nn.Module) -> str:
    """Load the newest checkpoint from before the step, where there is one; what was taken, in words."""
    before = [folder for folder in checkpoint.find(run) if int(folder.name.removeprefix("step-")) < step]
    if not before:
        return "the weights of the run's beginning"
    try:
        load_model(model, str(before[-1] / "model.safetensors"))
    except (RuntimeError, SafetensorError, OSError) as error:  # other names or shapes; or a file that is cut
        raise LfError(f"the checkpoint {before[-1].name} of run {run.id} doesn't fit the workload's model of now "
                      f"({_line(error)}); replay it with the code that the run had.") from error
    return f"the weights of {before[-1].name}"


def _read(path: Path, device: torch.device) -> tuple[Batch, Batch]:
    """The kept (batch, draws)."""
    try:
        pair = torch.load(path, map_location=device, weights_only=True)
        return pair["batch"], pair["draws"]
    except (RuntimeError, EOFError, OSError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise LfError(f"the kept batch {path.name} can't be read, it is cut or damaged ({_line(error)}); replay "
                      "another step, or run the recipe again.") from error


def _line(error: Exception) -> str:
    """The first lines of an error as one."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def _path(run: Run, step: int, rank: int) -> Path:
    return run.path / f"nonfinite-step-{step}-rank-{rank}.pt"
