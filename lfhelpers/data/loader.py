"""What all engines share: the request they serve, and the driver of those that decode in worker processes.

Workers are forked. They start at once, import nothing a second time and need nothing to be picklable but what they
send back; the price is that loaders must be made before the process uses CUDA, so a loader starts its workers when it
is made, not when it is first asked for a batch. Pinned buffers are made by a thread of the main process afterwards.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from lfhelpers.data import draws, images, quarantine
from lfhelpers.data.draws import Draw
from lfhelpers.data.manifest import Manifest
from lfhelpers.data.order import Ids, Plan
from lfhelpers.data.quarantine import Fetched, Quarantine
from lfhelpers.errors import LfError
from lfhelpers.measure.hardware import usable_cores
from lfhelpers.processes import die_with_parent
from lfhelpers.recipe import Recipe

Batch = dict[str, Tensor]
MIN_WORKERS, MAX_WORKERS = 2, 16
CLOSED = "this loader is closed: it delivers its batches once; make another one with make_loader."


class Fields(Protocol):
    """Members that a workload reads: `images` are decoded to `size` x `size` pixels, `others` stay bytes."""

    @property
    def images(self) -> tuple[str, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def others(self) -> tuple[str, ...]: ...


class Loader(Protocol):
    """Host batches of one rank in the plan's order, once. `close`, or leaving its `with` block, ends all it started.

    A batch: "images" uint8 [B, V, P, P, 3], or float32 [B, V, 3, P, P] in -1..1 from an engine that normalises;
    the stacked tensors of `sample`; "ids" int64 [B]; "valid" float32 [B], 0 for padding and for what stands in for a
    bad sample.
    """

    def __iter__(self) -> Iterator[Batch]: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Loader: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...


@dataclass(frozen=True)
class Request:
    """What to deliver: the batches of `rank` in steps start..stop-1; `sample` makes tensors from `fields.others`.

    bad: what becomes of bad samples; without it they raise.
    """

    job: Recipe
    manifest: Manifest
    plan: Plan
    fields: Fields
    sample: Callable[[Mapping[str, bytes]], Mapping[str, Tensor]]
    rank: int
    start: int
    stop: int
    bad: Quarantine | None = None

    def sequence(self) -> Iterator[tuple[int, int]]:
        """(step, micro-batch) of every batch, in order."""
        return self.plan.sequence(self.start, self.stop)

    def batches(self) -> int:
        """How many batches that is."""
        return sum(self.plan.micro_batches(step) for step in range(self.start, self.stop))

    def draws(self, step: int, ids: Ids) -> list[Draw]:
        """Each sample's augmentation, or the centre crop where the recipe has none."""
        if not self.job.data.augment:
            return [draws.CENTRE] * len(ids)
        return draws.draw(self.plan.seed, self.plan.epoch(step), ids)

    def read(self, index: int) -> dict[str, bytes]:
        """The members that the workload reads, compared with their crc32: a flipped bit decodes without a complaint."""
        return self.manifest.read(index, (*self.fields.images, *self.fields.others), check=True)

    def decode(self, index: int, members: Mapping[str, bytes]) -> list[Image.Image]:
        """The sample's views as whole frames."""
        return [whole_frame(members[ext], self.manifest.where(index, ext)) for ext in self.fields.images]

    def tensors(self, index: int, members: Mapping[str, bytes]) -> dict[str, Tensor]:
        """`sample` of the other members; whatever it raises becomes an LfError that names them."""
        try:
            return dict(self.sample({ext: members[ext] for ext in self.fields.others}))
        except Exception as error:
            where = self.manifest.where(index, "+".join(self.fields.others))
            raise LfError(f"{where}: the workload's sample() raised {type(error).__name__}: {error}") from error

    def fetch(self, index: int, step: int) -> Fetched:
        """(views as whole frames, tensors) of the sample, or of what stands in for it where it is bad and skipped."""
        def made(number: int) -> tuple[list[Image.Image], dict[str, Tensor]]:
            members = self.read(number)
            return self.decode(number, members), self.tensors(number, members)

        return quarantine.fetch(self, step, index, made)

    def workers(self) -> int:
        """data.workers, or this rank's share of the host's usable cores less one for the rank itself, 2 to 16.

        Two even where cores are few: while one hands its batch over, the other decodes (2 cores: 1.4 times the speed).
        """
        if self.job.data.workers is not None:
            return self.job.data.workers
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", self.plan.world))
        return min(max(usable_cores() // ranks - 1, MIN_WORKERS), MAX_WORKERS)

    def pin(self) -> bool:
        """Whether batches go to page-locked memory: asked for, and there is a GPU that it helps."""
        return self.job.data.pin and self.job.device != "cpu" and torch.cuda.is_available()


def whole_frame(data: bytes, where: str) -> Image.Image:
    """images.decode of what every engine can decode. Raises LfError naming `where`."""
    if data.startswith(b"GIF8"):
        raise LfError(f"{where} is a GIF, which DALI can't decode; convert it and pack the shard again.")
    return images.decode(data, where)


def view(frame: Image.Image, draw: Draw, size: int) -> NDArray[np.uint8]:
    """One view of a sample as uint8 [size, size, 3], cropped and coloured by the sample's draw, alike for all views."""
    return images.augment(frame, draws.crop_box(draw.offset, *frame.size), draw.matrix, size)


def stack(samples: Sequence[Mapping[str, Tensor]]) -> Batch:
    """Samples' tensors as one batch. Raises LfError where their shapes differ."""
    try:
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    except (RuntimeError, KeyError) as error:
        raise LfError(f"the workload's sample() must give the same tensors in the same shapes for every sample: {error}"
                      ) from error


class WorkerLoader:
    """Drives a DataLoader once; `finish` turns what a worker sent for (step, micro-batch) into the batch.

    Workers send (that, the rows' faults): Fetched.fault of each. Faults are recorded where bad samples are skipped.
    A worker's error is raised as one LfError that names shard and member, with the worker's traceback as its cause.
    """

    def __init__(self, request: Request, dataset: Any, finish: Callable[[Any, int, int], Batch] | None = None,
                 pin: bool = False, **options: Any) -> None:
        workers, parent = request.workers(), os.getpid()
        if workers:  # without workers torch refuses these
            options |= {"prefetch_factor": request.job.data.prefetch, "multiprocessing_context": "fork",
                        "worker_init_fn": lambda _: die_with_parent(parent)}  # torch's own watch takes 5 s and more
        self._request = request
        self._finish = finish
        self._record = quarantine.Record(request, request.bad) if request.bad else None
        with warnings.catch_warnings():  # that there are more workers than cores: the recipe decides
            warnings.filterwarnings("ignore", "This DataLoader will create")
            # A generator of its own: torch draws a seed, and would change the training's random numbers.
            loader = DataLoader(dataset, num_workers=workers, pin_memory=pin, generator=torch.Generator(), **options)
            self._batches: Any = iter(loader)  # workers start here; torch gives each of them one thread

    def __iter__(self) -> Iterator[Batch]:
        try:
            for step, micro in self._request.sequence():
                raw, faults = self._next()
                if self._record:
                    self._record(step, micro, faults)
                yield self._finish(raw, step, micro) if self._finish else raw
        finally:
            self.close()

    def __len__(self) -> int:
        return self._request.batches()

    def close(self) -> None:
        """End the workers and wait for them. Further calls do nothing."""
        batches, self._batches = self._batches, None
        if hasattr(batches, "_shutdown_workers"):
            batches._shutdown_workers()  # torch has no public name for it, and __del__ may come late

    def __enter__(self) -> WorkerLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Close; a worker's death, which torch's signal handler raises wherever the process happens to be, is named."""
        self.close()
        if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
            raise _died(error) from error

    def _next(self) -> Any:
        if self._batches is None:
            raise LfError(CLOSED)
        try:
            return next(self._batches)
        except LfError as error:  # torch puts the worker's traceback before the sentence
            raise LfError(str(error).rpartition("LfError: ")[2].strip()) from error
        except (RuntimeError, EOFError, OSError) as error:  # the last two: it died while it handed a batch over
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            raise _died(error) from error


def _died(error: BaseException) -> LfError:
    what = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    return LfError(f"a data worker died ({what}); if it ran out of memory, try fewer data.workers, a smaller "
                   "data.prefetch, or a larger /dev/shm.")
