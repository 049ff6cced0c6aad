"""The plain loop that a workload of one's own comes with: torch alone, as a README would have it. A rank runs it.

`python -m lfhelpers.bench.own_loop RUN_FOLDER` trains it, and leaves plain.json; with --watched it is timed in blocks
that take turns, bare and under lf.watch. It is a good plain loop: workers do all preprocessing, pinned memory, one
iterator over all epochs. What it lacks is what the levers add: fusion, graphs, fewer bytes, no read in each step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from lfhelpers.data import images
from lfhelpers.data.manifest import Manifest
from lfhelpers.diagnose.watched import Watched
from lfhelpers.measure.hardware import usable_cores
from lfhelpers.recipe import Recipe
from lfhelpers.runs import Run
from lfhelpers.train.ranks import identify
from lfhelpers.workloads.base import Batch, Workload, find

RESULT = "plain.json"
WORKERS = 4
HELD = 8
"""Batches that the watched loop uses again and again, so that no loader's mood hides what watching costs."""
BLOCK = 25
"""Steps of a block."""


class Samples(Dataset[Batch]):
    """The workload's samples, read, decoded and normalised in the worker: images float32 [V, 3, S, S] in -1..1."""

    def __init__(self, manifest: Manifest, workload: Workload) -> None:
        self.manifest, self.workload, self.fields = manifest, workload, workload.fields

    def __len__(self) -> int:
        return self.manifest.samples

    def __getitem__(self, index: int) -> Batch:
        members = self.manifest.read(index, (*self.fields.images, *self.fields.others))
        size = self.fields.size
        views = [images.decode(members[ext], ext).resize((size, size), Image.Resampling.BILINEAR)
                 for ext in self.fields.images]
        pixels = np.stack([np.array(view) for view in views]) if views else np.empty((0, size, size, 3), np.uint8)
        made = self.workload.sample({ext: members[ext] for ext in self.fields.others})
        return made | {"images": torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1,
                       "ids": torch.tensor(index), "valid": torch.tensor(1.0)}


class Plain:
    """Model, optimizer and step of the plain loop."""

    def __init__(self, job: Recipe, device: torch.device) -> None:
        torch.manual_seed(job.seed)
        self.job, self.device, self.workload = job, device, find(job)
        self.generator = torch.Generator(device).manual_seed(job.seed)
        self.model: nn.Module = self.workload.model().to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.workload.default_lr(),
                                           weight_decay=job.optimizer.weight_decay)

    def loader(self, steps: int) -> Iterator[Batch]:
        """The batches of so many steps."""
        manifest = Manifest.load(str(self.job.data.path), cache_gb=self.job.data.cache_gb)
        samples: Any = Samples(manifest, self.workload)
        order = RandomSampler(samples, num_samples=steps * self.job.batch.micro)
        return iter(DataLoader(samples, self.job.batch.micro, sampler=order, num_workers=min(WORKERS, usable_cores()),
                               pin_memory=self.device.type == "cuda"))

    def train(self, batches: Iterable[Batch]) -> list[float]:
        """A step for each batch; their losses."""
        losses = []
        for host in batches:
            batch = {name: value.to(self.device) for name, value in host.items()}
            with self._autocast():
                total, weight = self.workload.loss(self.model, batch, self._draws(len(batch["ids"])))
                loss = total / weight
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def _draws(self, samples: int) -> dict[str, Tensor]:
        return self.workload.draws(samples, self.generator)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        bf16 = self.job.precision.mode == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()


def timed(plain: Plain, untimed: int, steps: int) -> dict[str, Any]:
    """{"samples_per_s", "step_ms", "loss"}: after `untimed` steps, of `steps`; loss is that of the last quarter."""
    batches = plain.loader(untimed + steps)
    plain.train(itertools.islice(batches, untimed))
    began = time.perf_counter()
    losses = plain.train(batches)
    spent = time.perf_counter() - began
    return {"samples_per_s": steps * plain.job.batch.micro / spent, "step_ms": 1e3 * spent / steps,
            "loss": statistics.fmean(losses[-max(1, steps // 4):])}


def watched(plain: Plain, untimed: int, blocks: int) -> dict[str, Any]:
    """{"bare", "watched"}: seconds of a step in each block, in turns, on batches that are held."""
    held = list(plain.loader(HELD))
    plain.train(itertools.islice(itertools.cycle(held), untimed))
    found: dict[str, list[float]] = {"bare": [], "watched": []}
    for block in range(blocks):
        for side in list(found)[::1 if block % 2 == 0 else -1]:
            batches: Iterable[Batch] = list(itertools.islice(itertools.cycle(held), BLOCK))
            if side == "watched":
                batches = Watched(batches, plain.model, plain.optimizer, show=False)
            began = time.perf_counter()
            plain.train(batches)
            found[side].append((time.perf_counter() - began) / BLOCK)
    return found


def main() -> None:
    """What runs as the rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--watched", type=int, default=0, metavar="BLOCKS")
    options = parser.parse_args()
    run = Run(options.run)
    job, ranks = run.recipe, identify(run.recipe.device)
    ranks.take_device()
    plain, untimed = Plain(job, ranks.device), job.untimed(ranks.device.type)
    run.write(RESULT, watched(plain, untimed, options.watched) if options.watched else
              timed(plain, untimed, job.steps - untimed))


if __name__ == "__main__":
    main()
