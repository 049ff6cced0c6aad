"""Checkpoints from which a run continues bit for bit: weights, optimizer, scaler, schedule, generators, data position.

A checkpoint is a folder `checkpoints/step-00000050`, filled under a temporary name and renamed. Weights are safetensors
with keys bare of wrappers' prefixes, so anything can load them; the rest is one file that torch reads with
weights_only, i.e. without running code from it. What a rank alone knows of the gradient exchange (error feedback, as
large as the gradients) it writes itself, beside the folder, and rank 0 moves it in.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers.comm_hooks import Exchange
from lfhelpers.levers.in_place import WRAPPED
from lfhelpers.runs import Run, new_folder
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.ranks import Ranks


def save(run: Run, step: int, model: nn.Module, optimizer: Optimizer, data: dict[str, Any], ranks: Ranks,
         keep: int, exchange: Exchange | None = None) -> None:
    """Write the state after `step` steps; rank 0 writes, every rank takes part. Raises LfError on a full disk."""
    generators = ranks.gather(generator_states(ranks.device))
    state = {"step": step, "optimizer": optimizer.state_dict(), "data": data, "generators": generators}
    own = exchange.state_dict() if exchange is not None else {}
    if own:
        with _writing(run, step):
            torch.save(own, _apart(run, ranks.rank))
        ranks.barrier()
    if ranks.first:
        with _writing(run, step), new_folder(run.path / "checkpoints" / f"step-{step:08d}") as folder:
            save_model(bare(model), str(folder / "model.safetensors"))
            torch.save(state, folder / "state.pt")
            for rank in range(ranks.world if own else 0):
                _apart(run, rank).rename(folder / f"exchange-{rank}.pt")
        for old in find(run)[:-keep]:
            shutil.rmtree(old)
    ranks.barrier()


def find(run: Run) -> list[Path]:
    """The run's complete checkpoints, oldest first."""
    return sorted((run.path / "checkpoints").glob("step-*"))


def steps_done(run: Run) -> int:
    """Steps that the run's newest checkpoint holds. Raises LfError where there is none."""
    if not (folders := find(run)):
        raise LfError(f"run {run.id} has no checkpoint to continue from; start it with checkpoint.every=N.")
    return int(folders[-1].name.removeprefix("step-"))


def load(run: Run, model: nn.Module, optimizer: Optimizer, ranks: Ranks,
         exchange: Exchange | None = None) -> dict[str, Any]:
    """Continue from the newest checkpoint; returns the data position's state."""
    folder = find(run)[-1]
    load_model(bare(model), str(folder / "model.safetensors"), device=str(ranks.device))
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    if len(state["generators"]) == ranks.world:
        set_generator_states(state["generators"][ranks.rank], ranks.device)
    elif ranks.first:
        print(f"continuing with {ranks.world} ranks what {len(state['generators'])} began: same samples and noise, "
              "new dropout masks, sums in another order", flush=True)
    if exchange is not None:
        _read_apart(folder, exchange, ranks, len(state["generators"]))
    return dict(state["data"])


@contextlib.contextmanager
def _writing(run: Run, step: int) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        raise LfError(f"the checkpoint of step {step} can't be written into {run.path / 'checkpoints'}: {error}; "
                      "the ones before it are kept.") from error


def _apart(run: Run, rank: int) -> Path:
    """Where a rank writes the state of its exchange, until rank 0 moves it into the checkpoint."""
    return run.path / "checkpoints" / f".exchange-{rank}.pt"


def _read_apart(folder: Path, exchange: Exchange, ranks: Ranks, writers: int) -> None:
    """Restore this rank's exchange; with another number of ranks, what is common to all."""
    same = writers == ranks.world
    file = folder / f"exchange-{ranks.rank if same else 0}.pt"
    if not file.exists():
        return
    state = torch.load(file, map_location="cpu", weights_only=True)
    exchange.load_state_dict(state if same else exchange.common(state))
    if not same and ranks.first:
        print("what compression had left out of gradients belonged to the ranks of then, and is forgotten", flush=True)


def bare(model: nn.Module) -> nn.Module:
    """The model without torch.compile and what ranks need around it, in any nesting; compiled blocks keep names."""
    while True:
        if isinstance(model, WRAPPED):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def generator_states(device: torch.device) -> dict[str, Any]:
    """The states of Python's, numpy's and torch's global generators, as plain values."""
    numpy_state: Any = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": numpy_state | {"state": numpy_state["state"] | {"key": numpy_state["state"]["key"].tolist()}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_generator_states(states: dict[str, Any], device: torch.device) -> None:
    """Put back what `generator_states` gave."""
    random.setstate(states["python"])
    key = np.asarray(states["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state(states["numpy"] | {"state": states["numpy"]["state"] | {"key": key}})
    torch.set_rng_state(states["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
