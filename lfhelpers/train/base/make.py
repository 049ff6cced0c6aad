"""Making a base: the stages of its recipe one after the other, measured on held-out scenes, resumable between checks.

What is finished is kept under the hash of recipe and code, and made once. What is under way lies beside it in a folder
whose name begins with a dot: a killed make goes on from the last check, with the same lessons, noise and rates.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from tqdm import tqdm

from lfhelpers.data.locks import Locked
from lfhelpers.errors import LfError
from lfhelpers.levers.compile import session
from lfhelpers.measure import hardware
from lfhelpers.recipe import Recipe, recipe
from lfhelpers.runs import new_folder, now, write_atomic
from lfhelpers.train.base.pool import Pool
from lfhelpers.train.base.recipe import BaseRecipe, Stage, meets
from lfhelpers.train.held_out import quality
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision, arithmetic
from lfhelpers.train.ranks import Ranks, identify
from lfhelpers.workloads.vla import pretrained, teachers
from lfhelpers.workloads.vla.lessons import Lessons
from lfhelpers.workloads.vla.model import VlaModel
from lfhelpers.workloads.vla.workload import Vla

STATE = "state.pt"
Points = list[dict[str, Any]]


@dataclass
class Progress:
    """Where a make stands."""

    stage: int = 0
    step: int = 0
    """Steps done of that stage."""
    drawn: int = 0
    samples: int = 0
    seconds: float = 0.0
    points: Points = field(default_factory=list)
    """The learning curve: a row a measurement, with stage, step, samples, seconds of making, losses and figures."""


def make(base: BaseRecipe, device: str = "auto", again: bool = False,
         told: Callable[[dict[str, Any]], object] = lambda point: None) -> Path:
    """The folder of the finished base, made unless it is there; `told` is given each measurement as it comes.

    again: make it anew. Whether its targets are met stands in the card as "met".
    """
    folder, ranks = base.folder, identify(device)
    if ranks.world > 1:
        raise LfError("a base is made by one process; start `lfhelpers base make` without torchrun.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Locked(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT) as lock:
        lock.exclusive(wait=True)  # who finds another process at it waits for what that one makes
        if (folder / pretrained.CARD).exists() and not again:
            return folder
        making = _Making(base, ranks, folder)
        with arithmetic(base.precision, ranks.device):
            try:
                making.run(told)
            finally:
                making.pool.close()
        return _finish(making, again)


class _Making:
    """The parts: model, read-outs, pool, and the stage's optimizer."""

    def __init__(self, base: BaseRecipe, ranks: Ranks, folder: Path) -> None:
        self.base, self.ranks, self.folder = base, ranks, folder
        self.code = pretrained.code()  # the code may be changed while this runs
        self.job = _job(base)
        self.workload = Vla(self.job)
        self.began, self.progress = time.perf_counter(), Progress()
        lessons = Lessons(self.workload, base.seed, base.tasks, base.answer_tokens)
        self.pool = Pool(lessons, base.pool, ranks.device, _workers(), base.jitter)
        self.work = folder.with_name(f".{folder.name}")
        self._saved = self._load()
        total = base.first + sum(stage.steps * stage.fresh for stage in base.stages)
        self.pool.start(self.progress.drawn or base.first, total)  # forks, so it comes before CUDA is touched
        ranks.take_device()
        torch.manual_seed(base.seed)
        with ranks.device:
            self.model = self.workload.model()
            self.teachers = teachers.Teachers(self.workload.size.language.width)
        self.both = nn.ModuleDict({"model": self.model, "teachers": self.teachers})
        self.precision = Precision(self.job.precision, ranks.device)
        if self._saved:
            self.both.load_state_dict(self._saved["weights"])

    def run(self, told: Callable[[dict[str, Any]], object]) -> None:
        """All stages that are still to do."""
        with session(self.job, self.ranks.device) as self.compilation:
            self.compilation.apply(self.model, self.workload.blocks(self.model))
            while self.progress.stage < len(self.base.stages):
                stage = self.base.stages[self.progress.stage]
                self._stage(stage, told)
                self.progress.stage, self.progress.step = self.progress.stage + 1, 0
                self._save(None)

    def _stage(self, stage: Stage, told: Callable[[dict[str, Any]], object]) -> None:
        _train_only(self.both, stage)
        job = self.job.with_(**{"steps": stage.steps, "optimizer.lr": stage.lr, "optimizer.warmup": stage.warmup,
                                "optimizer.schedule": stage.schedule, "optimizer.betas": self.base.betas})
        optimizer = Optimizer(job, self.both, stage.lr, self.precision.scaler)
        if self._saved and self._saved["optimizer"]:
            optimizer.load_state_dict(self._saved["optimizer"])
        self._saved = None
        self.pool.look(None if "vision" in stage.train or stage.teach.get("sight") else self._see)
        means: dict[str, Tensor] = {}
        self.both.train()
        for step in tqdm(range(self.progress.step, stage.steps), desc=f"{self.base.name} {stage.name}",
                         initial=self.progress.step, total=stage.steps, disable=not sys.stderr.isatty()):
            for kind, loss in self._step(stage, optimizer, step).items():
                means[kind] = 0.98 * means.get(kind, loss) + 0.02 * loss
            done = step + 1
            if done == stage.steps or (stage.check and done % stage.check == 0):
                self.progress.step = done
                point = self._measured(stage, {kind: float(loss) for kind, loss in means.items()})
                told(point)
                if stage.until and meets(point, stage.until):
                    break
                self._save(optimizer)

    def _step(self, stage: Stage, optimizer: Optimizer, step: int) -> dict[str, Tensor]:
        """One update; its losses, still on the device."""
        device = self.ranks.device
        number = (self.base.seed * 64 + self.progress.stage) * 1_000_000 + step
        generator = torch.Generator(device).manual_seed(number)
        batch = self.pool.batch(stage.batch, generator)
        draws = self.workload.draws(stage.batch * stage.noises, generator) if stage.teach.get("action") else {}
        with self.precision.autocast():
            found = teachers.losses(self.model, self.teachers, batch, draws, stage.teach)
        total = torch.stack([stage.teach[kind] * loss for kind, loss in found.items()]).sum()
        total.backward()
        optimizer.update(torch.ones((), device=device))
        self.pool.feed(stage.fresh)
        self.progress.drawn = self.pool.drawn
        self.progress.samples += stage.batch
        return {kind: loss.detach() for kind, loss in found.items()}

    def _see(self, images: Tensor) -> Tensor:
        with self.compilation.eager(), self.precision.autocast():  # lessons come in by numbers of many kinds
            return self.model.connector(self.model.vision(images))

    def _measured(self, stage: Stage, losses: dict[str, float]) -> dict[str, Any]:
        """A row of the curve: the figures that a stage's teachers bear on; seconds don't count the measuring."""
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize()
        self.progress.seconds += time.perf_counter() - self.began
        asked: dict[str, Any] = {"evaluate.episodes": self.base.episodes if stage.teach.get("action") else 0,
                                 "evaluate.words": self.base.scenes if stage.teach.get("text") else 0}
        samples = self.base.scenes if asked["evaluate.episodes"] else 0
        with self.compilation.eager():
            figures = evaluated(self.model, self.job.with_(**asked), samples, self.ranks, self.precision)
        point = {**{f"loss_{kind}": loss for kind, loss in losses.items()}, **figures, "stage": stage.name,
                 "step": self.progress.step, "samples": self.progress.samples, "seconds": self.progress.seconds}
        self.progress.points.append(point)
        self.began = time.perf_counter()
        return point

    def _save(self, optimizer: Optimizer | None) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        state = {"progress": vars(self.progress), "weights": self.both.state_dict(),
                 "optimizer": optimizer.state_dict() if optimizer else None}
        torch.save(state, self.work / f".{STATE}")
        (self.work / f".{STATE}").replace(self.work / STATE)

    def _load(self) -> dict[str, Any] | None:
        if not (self.work / STATE).exists():
            return None
        state = torch.load(self.work / STATE, map_location="cpu", weights_only=True)
        self.progress = Progress(**state["progress"])
        return state


def evaluated(model: VlaModel, job: Recipe, samples: int, ranks: Ranks, precision: Precision) -> dict[str, float]:
    """The figures that the recipe's evaluate section asks for, of a model that is in training."""
    asked = job.evaluate.model_copy(update={"samples": samples})
    return quality(asked, Vla(job), model, ranks, precision, contextlib.nullcontext())


def _job(base: BaseRecipe) -> Recipe:
    """The recipe that the model and its loss are built by: all of it can be trained, and says captions and answers."""
    return recipe("competent", **{
        "name": f"base-{base.name}", "seed": base.seed, "workload.size": base.size, "precision.mode": base.precision,
        "precision.frozen_bf16": False, "compile.scope": base.compile, "workload.tune_vision": True,
        "workload.tune_language": True, "workload.text_loss": 1.0, "evaluate.task": base.evaluate})


def _workers() -> int:
    """Processes that draw: the cores but the trainer's, and no more than can be of use."""
    return min(max(1, hardware.usable_cores() - 1), 16)


def _train_only(both: nn.ModuleDict, stage: Stage) -> None:
    model: Any = both["model"]
    parts = {"vision": (model.vision, model.connector), "words": (model.decoder, model.norm, model.lm_head),
             "head": (model.head,)}
    both.requires_grad_(False)
    for module in (both["teachers"], *(module for part in stage.train for module in parts[part])):
        module.requires_grad_(True)


def _finish(making: _Making, again: bool) -> Path:
    base, progress = making.base, making.progress
    figures = {name: value for point in progress.points for name, value in point.items()
               if isinstance(value, float) and name != "seconds"}  # the newest of each
    about = {"name": base.name, "size": base.size, "digest": making.folder.name.rpartition("-")[2],
             "code": making.code, "made": now(), "seconds": progress.seconds,
             "samples": progress.samples, "drawn": progress.drawn, "met": meets(figures, base.targets),
             "targets": base.targets, "figures": figures,
             "recipe": base.model_dump(mode="json"), "hardware": hardware.title(making.ranks.device.type),
             "curve": progress.points}
    if again:
        shutil.rmtree(making.folder, ignore_errors=True)
    try:
        with new_folder(making.folder) as folder:
            save_model(making.model, str(folder / pretrained.WEIGHTS), metadata={"base": base.name})
            write_atomic(folder / pretrained.CARD, orjson.dumps(about, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise LfError(f"the base can't be written into {making.folder.parent}: {error.strerror}; give another place "
                      "with LFHELPERS_CACHE.") from error
    shutil.rmtree(making.work, ignore_errors=True)
    return making.folder
