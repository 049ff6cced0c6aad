"""The recipe of a base: its stages, what each one trains and by which teacher, and the figures at which it may stop.

One TOML file a base; those of the package are found by name. What was learnt about the order: sight comes first and
by dense answers, then the word is grounded in what is seen, and only then are actions worth a step.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError, model_validator

from lfhelpers.errors import LfError, nearest
from lfhelpers.recipe import parse_override
from lfhelpers.recipe.fields import Count, Section
from lfhelpers.workloads.vla import pretrained
from lfhelpers.workloads.vla.tabletop.tasks import TASKS
from lfhelpers.workloads.vla.teachers import KINDS

Part = Literal["vision", "words", "head"]
METRICS = ("question_accuracy", "bleu4", "cider", "success", "action_mse")


class Stage(Section):
    """Some steps with one set of trained parts, teachers and learning rates."""

    name: str
    steps: Count
    """Optimizer steps at most."""
    batch: Count = 64
    """Lessons a step, drawn at random from the pool."""
    fresh: int = Field(16, ge=0)
    """New lessons that enter the pool in each step."""
    lr: float = Field(gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up; `constant` for a stage that is to stop early."""
    warmup: float = Field(0.05, ge=0, lt=1)
    """Share of the steps over which the learning rate rises."""
    train: tuple[Part, ...]
    """`vision` with the connector, `words` (the decoder), `head` (the action head)."""
    teach: dict[str, float]
    """Weights of the losses: dense sight, the named place, captions and questions, actions."""
    noises: Count = 1
    """Times that each lesson's actions are denoised in a step: the head is small beside what it reads."""
    check: int = Field(0, ge=0)
    """Steps between measurements, which make the learning curve; 0: at the end alone."""
    until: dict[str, float] = Field(default_factory=dict)
    """Figures at which the stage ends early, all of them: {success = 0.8}; action_mse counts downwards."""


class BaseRecipe(Section):
    """All that decides what a base is."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    size: str
    """The model's size."""
    seed: int = Field(0, ge=0)
    """Of weights, lessons, their order, and noise."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Autocast of the forward pass; weights are fp32."""
    compile: Literal["none", "blocks"] = "none"
    """What is compiled of the model in training; measurements, and vision once it is frozen, run eagerly."""
    tasks: tuple[str, ...]
    """Tasks of its lessons, drawn alike often."""
    evaluate: str
    """The task by which success is measured."""
    finetune: str
    """The task that it has not seen and is fine-tuned on."""
    answer_tokens: Count = 48
    """Words of captions and questions in a lesson, at most."""
    pool: Count = 8192
    """Lessons kept on the device; the oldest go."""
    first: Count = 1024
    """Lessons drawn before the first step."""
    jitter: bool = False
    """Change colours as the data engines' augmentation does."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's."""
    episodes: Count = 100
    """Held-out episodes of a measurement."""
    scenes: Count = 100
    """Held-out scenes of a measurement of captions and questions."""
    stages: tuple[Stage, ...] = Field(min_length=1)
    targets: dict[str, float]
    """Figures that the finished base must have."""

    @model_validator(mode="after")
    def _known(self) -> BaseRecipe:
        for task in (*self.tasks, self.evaluate, self.finetune):
            if task not in TASKS:
                raise ValueError(f"there is no task '{task}'; {nearest(task, TASKS)}")
        for name in (*self.targets, *(name for stage in self.stages for name in stage.until)):
            if name not in METRICS:
                raise ValueError(f"there is no figure '{name}'; {nearest(name, METRICS)}")
        for kind in (kind for stage in self.stages for kind in stage.teach):
            if kind not in KINDS:
                raise ValueError(f"there is no teacher '{kind}'; {nearest(kind, KINDS)}")
        if self.first > self.pool or self.stages[0].batch > self.pool:
            raise ValueError("pool must hold the first lessons and a batch")
        return self

    @property
    def digest(self) -> str:
        """Of the recipe and of the code that carries it out, 12 hex digits."""
        content = orjson.dumps([self.model_dump(mode="json"), pretrained.code()], option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(content).hexdigest()[:12]

    def upto(self, stage: str) -> BaseRecipe:
        """The same with no stage after the named one, and without targets. Raises LfError where there is none."""
        names = [one.name for one in self.stages]
        if stage not in names:
            raise LfError(f"base {self.name} has no stage '{stage}'; {nearest(stage, names)}")
        return self.model_copy(update={"stages": self.stages[:names.index(stage) + 1], "targets": {}})

    @property
    def folder(self) -> Path:
        """Where the finished base lies."""
        return pretrained.folder() / f"{self.name}-{self.digest}"


def load(source: str | Path, *overrides: str) -> BaseRecipe:
    """A base's recipe by its name in the package or its file, with overrides such as "stages.0.lr=1e-3"."""
    own = {path.stem: path for path in Path(__file__).parent.glob("*.toml")}
    path = own.get(str(source), Path(source))
    if path.suffix != ".toml":
        raise LfError(f"no base is named '{source}'; {nearest(str(source), own)} A recipe file must end in .toml.")
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LfError(f"base recipe {path} can't be read: {error}.") from error
    for text in overrides:
        _put(data, *parse_override(text))
    try:
        return BaseRecipe.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise LfError(f"base recipe {path.name}, {place or 'as a whole'}: "
                      f"{first['msg'].removeprefix('Value error, ')}.") from error


def _put(data: Any, path: str, value: Any) -> None:
    """Set a value at a dotted place; a number there counts in a list."""
    *parents, last = path.split(".")
    try:
        for name in parents:
            data = data[int(name)] if isinstance(data, list) else data[name]
        data[int(last) if isinstance(data, list) else last] = value
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise LfError(f"base recipe field '{path}' does not exist.") from error


def meets(figures: dict[str, float], wanted: dict[str, float]) -> bool:
    """Whether every figure is as good as is wanted; one that wasn't measured is not."""
    def good(name: str, goal: float) -> bool:
        found = figures.get(name)
        return found is not None and (found <= goal if name == "action_mse" else found >= goal)
    return all(good(name, goal) for name, goal in wanted.items())
