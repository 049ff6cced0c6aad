"""What a workload must offer: the contract between the trainer and what it trains.

A workload of your own is a class with these methods; it need not inherit from anything. `find` builds it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lfhelpers.errors import LfError, nearest
from lfhelpers.recipe import Recipe

Batch = dict[str, Tensor]
LR = 1e-3
"""Of a workload that suggests none."""


@dataclass(frozen=True)
class Fields:
    """The members of a shard's sample that a workload reads, by extension.

    `images` are decoded by the data engine to `size` x `size` pixels and arrive as batch["images"]: uint8
    [B, V, size, size, 3] for V images, or, from an engine that normalises, float32 [B, V, 3, size, size] in -1..1.
    `others` go to `sample` as bytes.
    """

    images: tuple[str, ...]
    size: int
    others: tuple[str, ...]


@runtime_checkable
class Workload(Protocol):
    """What is trained. Built once a process from the recipe: `MyWorkload(recipe)`."""

    fields: Fields
    """Any object with these three attributes; a workload without images has images=() and size=0."""

    def model(self) -> nn.Module:
        """The model, built on torch's current default device, with requires_grad set as it is to be trained."""
        ...

    def sample(self, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """One sample's tensors from its non-image members, of fixed shapes; the engine stacks them into [B, ...]."""
        ...

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """All randomness of the loss, [samples, ...] each, drawn from `generator` on its device. Left out: none."""
        ...

    def loss(self, model: nn.Module, batch: Batch, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(sum, weight): 0-dim tensors whose ratio is the loss, so that micro-batches and ranks add up exactly.

        batch holds "images", the stacked tensors of `sample`, "ids" int64 [B] and "valid" float32 [B];
        a sample whose valid is 0 must add nothing to either. `model` may be wrapped by DDP: call it, as it is.

        With data.mixup each image is blended with another row's, and the batch also holds "mix" float32 [B], the weight
        of the row's own sample, and "partner" int64 [B], the other row: weight the two targets by mix and 1 - mix.
        A workload that does so says `mixes = True`; any other one is refused where the recipe has MixUp.
        """
        ...

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The repeated blocks that compilation and checkpointing work on. May be left out: `blocks_of` then looks."""
        ...

    def frozen(self, model: nn.Module, batch: Batch) -> Batch:
        """The batch with what the model's frozen part makes of it in place of that part's inputs, under no_grad.

        `loss` of the result must equal `loss` of the batch. May be left out: then `frozen.ahead` is refused.
        """
        ...

    def evaluate(self, model: nn.Module, samples: int, device: torch.device) -> dict[str, float]:
        """Quality on held-out data; the model is unwrapped and in eval mode, under no_grad and autocast.

        Left out: no figures, so that a run's quality is its loss.
        """
        ...

    def flops_per_sample(self) -> float:
        """FLOPs of forward and backward of one sample, recomputation not counted, frozen parts forward only."""
        ...

    def default_lr(self) -> float:
        """The peak learning rate where the recipe gives none. Left out: 1e-3."""
        ...


@runtime_checkable
class Making(Protocol):
    """What a workload may offer so that it needs no shards: without data.path its own samples are packed, once."""

    samples: int
    """How many `generate` makes."""

    def generate(self, index: int) -> Mapping[str, bytes]:
        """Sample `index` (from 0) as the members of a shard, by extension; a pure function of recipe and index."""
        ...


@runtime_checkable
class Judging(Protocol):
    """What a workload may offer besides `evaluate`, so that ranks share the held-out data out."""

    def judged(self, model: nn.Module, samples: int, device: torch.device, rank: int, world: int) -> Any:
        """What came of the held-out samples rank, rank + world, rank + 2 world, ...; whatever can be pickled."""
        ...

    def verdict(self, found: Sequence[Any]) -> dict[str, float]:
        """The figures of what all ranks found, in rank order: the same on any number of ranks."""
        ...


def find(job: Recipe) -> Workload:
    """The recipe's workload, built. Raises LfError where it can't be found or lacks a method."""
    use = job.workload.use
    if use == "vla":
        use = "lfhelpers.workloads.vla.workload:Vla"
    location, colon, name = use.rpartition(":")
    if not colon:
        raise LfError(f"workload.use = '{use}' names no workload: write vla, path/to/file.py:MyWorkload "
                      "or package.module:MyWorkload.")
    kind = getattr(_module(location), name, None)
    if kind is None:
        known = [key for key in vars(_module(location)) if not key.startswith("_")]
        raise LfError(f"workload.use: {location} has no '{name}'; {nearest(name, known)}")
    workload = complete(_built(kind, job, name))
    missing = [key for key in _members(Workload) if key not in OPTIONAL and not hasattr(workload, key)]
    if job.frozen.ahead and not hasattr(workload, "frozen"):
        raise LfError(f"frozen.ahead: workload {name} has no frozen(model, batch); add it, or set frozen.ahead=false.")
    if job.data.mixup and not getattr(workload, "mixes", False):
        raise LfError(f"data.mixup: workload {name} does not say that its loss weights the targets of mixed images; "
                      "have it do so and set mixes = True in the class, or set data.mixup=0.")
    if missing:
        raise LfError(f"workload {name} in {location} lacks {', '.join(missing)}; notebook 08 shows what each must do.")
    return workload


def _no_draws(samples: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {}


def _no_figures(model: nn.Module, samples: int, device: torch.device) -> dict[str, float]:
    return {}


def _usual_lr() -> float:
    return LR


STAND_INS: dict[str, Callable[..., Any]] = {"draws": _no_draws, "evaluate": _no_figures, "default_lr": _usual_lr}
"""What a workload has in place of what it leaves out."""
OPTIONAL = ("blocks", "frozen", *STAND_INS)
"""What a workload may leave out."""


def complete(workload: Workload) -> Workload:
    """The workload, with stand-ins for what it may leave out."""
    for key, stand_in in STAND_INS.items():
        if not hasattr(workload, key):
            setattr(workload, key, stand_in)
    return workload


def blocks_of(workload: Workload, model: nn.Module) -> Sequence[nn.Module]:
    """The workload's blocks; without a say of its own, the members of every list of two or more alike.

    A list is an nn.ModuleList, or an nn.Sequential of modules that have parts: a chain of bare layers repeats nothing.
    """
    if hasattr(workload, "blocks"):
        return workload.blocks(model)
    return [block for module in model.modules() if _repeats(module) for block in module.children()]


def _repeats(module: nn.Module) -> bool:
    parts = list(module.children())
    alike = len(parts) > 1 and len({type(part) for part in parts}) == 1
    whole = isinstance(module, nn.ModuleList) or (type(module) is nn.Sequential and any(parts[0].children()))
    return alike and whole


def _built(kind: type, job: Recipe, name: str) -> Workload:
    """An instance. Raises LfError where the class can't be called with a recipe alone."""
    try:
        inspect.signature(kind).bind(job)
    except TypeError as error:
        raise LfError(f"workload {name}(recipe) can't be built: {error}; give it `def __init__(self, recipe)`."
                      ) from error
    workload: Workload = kind(job)
    return workload


def _module(location: str) -> ModuleType:
    if not location.endswith(".py"):
        try:
            return importlib.import_module(location)
        except ModuleNotFoundError as error:
            raise LfError(f"workload.use: no module '{error.name}'; install it, or give a .py file's path.") from error
    path = Path(location).absolute()
    if not path.exists():
        raise LfError(f"workload.use: no file {path}.")
    name = f"lfhelpers_user_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)  # before exec, so that its classes pickle by name
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]  # half a module must not be taken for a whole one by the next call
            raise
    return sys.modules[name]


def _members(protocol: type) -> list[str]:
    return [*protocol.__annotations__, *(key for key, value in vars(protocol).items()
                                         if callable(value) and not key.startswith("_"))]
