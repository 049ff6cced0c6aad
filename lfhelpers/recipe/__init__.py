"""The recipe: everything that decides how a workload is trained, in one frozen object and one TOML file.

The defaults (recipe.fields) are the recipe `competent`; `as_found` and `full` are given as the fields in which they
differ, so that reading NAMED is reading what the playbook changes. Nothing here imports torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from lfhelpers.errors import LfError, nearest
from lfhelpers.recipe import batch, exchange
from lfhelpers.recipe.fields import (
    ActivationFields,
    BatchFields,
    CheckpointFields,
    CompileFields,
    Count,
    DataFields,
    DdpFields,
    EvaluateFields,
    FrozenFields,
    GraphFields,
    LogFields,
    OptimizerFields,
    PrecisionFields,
    Section,
    WorkloadFields,
)

PROFILED = 4
"""Steps that log.profile runs under the profiler: one to warm up and three to record."""


class Recipe(Section):
    """One training job, complete. Equal recipes on equal data give equal runs."""

    name: str = Field("competent", pattern=r"^[A-Za-z0-9_.-]+$")
    """Appears in the run folder's name."""
    seed: int = Field(0, ge=0)
    """The one seed: initial weights, order of samples, augmentation and noise are all derived from it."""
    steps: Count = 50
    """Optimizer steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the GPU where there is one."""
    workload: WorkloadFields = WorkloadFields()
    data: DataFields = DataFields()
    batch: BatchFields = BatchFields()
    precision: PrecisionFields = PrecisionFields()
    optimizer: OptimizerFields = OptimizerFields()
    ddp: DdpFields = DdpFields()
    compile: CompileFields = CompileFields()
    graph: GraphFields = GraphFields()
    frozen: FrozenFields = FrozenFields()
    activations: ActivationFields = ActivationFields()
    log: LogFields = LogFields()
    checkpoint: CheckpointFields = CheckpointFields()
    evaluate: EvaluateFields = EvaluateFields()

    @model_validator(mode="after")
    def _contradictions(self) -> Recipe:
        """Pairs of fields that cannot both hold, named by field."""
        strong = bool(self.data.rand_augment or self.data.mixup)
        clashes = [
            (self.data.async_copy and not self.data.pin,
             "data.async_copy needs data.pin=true: copies out of pageable memory block the host"),
            (strong and self.data.aug_on == "workers" and self.data.loader not in ("two_level", "auto"),
             "data.aug_on='workers' needs data.loader='two_level'; or take data.aug_on='device'"),
            (strong and self.data.loader == "as_found",
             "data.rand_augment and data.mixup need uint8 images: take another data.loader than 'as_found'"),
            (self.workload.tune_language and self.workload.tune_top_layers is not None,
             "workload.tune_language trains every layer, so workload.tune_top_layers must not be given"),
            (self.workload.per_sample_gather and not self.workload.train_unused,
             "workload.train_unused=false needs workload.per_sample_gather=false, which looks at every row"),
            (self.precision.mode == "fp16" and self.device == "cpu",
             "precision.mode='fp16' needs a GPU; take 'auto' for device='cpu'"),
            (self.precision.mode == "tf32" and self.device == "cpu",
             "precision.mode='tf32' needs a GPU; take 'fp32' for device='cpu'"),
            (self.compile.scope != "none" and self.batch.accumulate > 1
             and self.compile.mode in ("reduce-overhead", "max-autotune"),
             "compile.mode='reduce-overhead' and 'max-autotune' record CUDA graphs that overwrite accumulated "
             "gradients (pytorch issue 169545), so they need batch.accumulate=1; take 'max-autotune-no-cudagraphs'"),
            (self.precision.weights == "bf16" and self.precision.mode not in ("auto", "bf16"),
             "precision.weights='bf16' needs precision.mode='bf16'"),
            (self.precision.weights == "bf16" and not self.optimizer.fused,
             "precision.weights='bf16' needs optimizer.fused=true, whose kernel keeps the fp32 masters"),
            (self.precision.weights == "bf16" and self.batch.accumulate > 1,
             "precision.weights='bf16' would round the sum over batch.accumulate > 1 micro-batches; take "
             "precision.weights='fp32'"),
            (self.optimizer.states == "int8" and (self.optimizer.fused or self.precision.weights == "bf16"),
             "optimizer.states='int8' needs optimizer.fused=false and precision.weights='fp32'"),
            (self.graph.scope != "none" and (self.log.loss_item or self.precision.mode == "fp16"),
             "graph.scope needs log.loss_item=false and no fp16 scaler: both read a number on the host in every step"),
            (self.graph.scope == "step" and not self.optimizer.fused,
             "graph.scope='step' needs optimizer.fused=true: the unfused update asks the host"),
            (self.log.profile and self.steps < PROFILED + self.log.probe + 1,
             f"log.profile needs steps >= {PROFILED + self.log.probe + 1}: one to wait, one of warm-up and three to "
             "record" + ", and one for log.probe" * self.log.probe),
            ((self.activations.plan == "blocks") != bool(self.activations.blocks),
             "activations.plan='blocks' and the numbers in activations.blocks need each other"),
            (self.activations.plan == "budget" and self.compile.scope == "none",
             "activations.plan='budget' is carried out by the compiler; set compile.scope='blocks'"),
            (self.activations.recompute_every == 1 or bool(
                self.activations.recompute_every and self.activations.plan != "ops"),
             "activations.recompute_every needs activations.plan='ops' and is 0 or at least 2; for every product take "
             "activations.plan='all'"),
            *exchange.contradictions(self),
            *batch.contradictions(self),
        ]
        for clash, sentence in clashes:
            if clash:
                raise ValueError(sentence)
        return self

    def with_(self, *overrides: str, **fields: Any) -> Recipe:
        """A changed copy, by strings such as "ddp.bucket_mb=100" or by keywords, `ddp={"bucket_mb": 100}`.

        A section's other fields stay; keywords may be dotted, too: `**{"ddp.bucket_mb": 100}`.
        """
        data = self.model_dump()
        for text in overrides:
            path, value = parse_override(text)
            _put(data, path, value)
        for key, value in fields.items():
            if key in data and isinstance(value, Mapping):
                for name, inner in value.items():
                    _put(data, f"{key}.{name}", inner)
            else:
                _put(data, key, value)
        return _validated(data)

    def untimed(self, device: str) -> int:
        """First steps that statistics leave out: log.skip, on "cuda" at least those up to a CUDA graph's recording."""
        recording = device == "cuda" and self.graph.scope != "none"
        return max(self.log.skip, self.graph.warmup + 2 if recording else 0)

    def to_toml(self) -> str:
        """The recipe as TOML; fields without a value are left out."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))

    def flat(self) -> dict[str, Any]:
        """Every field by its dotted name."""
        return dict(_flatten(self.model_dump(), ""))


NAMED: dict[str, dict[str, Any]] = {
    "competent": {},
    "as_found": {
        "workload.compute_logits": True,
        "workload.per_sample_gather": True,
        "data.loader": "as_found",
        "data.workers": 4,
        "data.pin": False,
        "data.async_copy": False,
        "optimizer.fused": False,
        "ddp.bucket_view": False,
        "ddp.find_unused": True,
        "log.loss_item": True,
    },
    "full": {
        "workload.train_unused": False,
        "data.loader": "auto",
        "precision.weights": "bf16",
        "ddp.bucket_mb": 100.0,
        "ddp.in_place": True,
        "ddp.shard_optimizer": True,
        "compile.scope": "blocks",
        "graph.scope": "step",
        "frozen.packed": True,
        "frozen.ahead": True,
    },
}


def recipe(source: str | Path | Recipe = "competent", *overrides: str, **fields: Any) -> Recipe:
    """A named recipe, a TOML file, or a given recipe, with overrides.

    >>> recipe("as_found", "ddp.bucket_mb=100", steps=200).ddp.bucket_mb
    100.0
    """
    return _base(source).with_(*overrides, **fields)


def loads(text: str) -> Recipe:
    """A recipe from the text of a TOML file, as Recipe.to_toml writes it."""
    return _validated(tomllib.loads(text))


def diff(left: Recipe, right: Recipe) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, by dotted name; the name of the recipe is not one of them."""
    a, b = left.flat(), right.flat()
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys())
            if key != "name" and a.get(key) != b.get(key)}


def parse_override(text: str) -> tuple[str, Any]:
    """'ddp.bucket_mb=100' as ('ddp.bucket_mb', 100); what is no TOML value is a string."""
    path, equals, raw = text.partition("=")
    if not equals or not path.strip():
        raise LfError(f"'{text}' is no override: write field=value, for example ddp.bucket_mb=100")
    try:
        return path.strip(), tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), raw.strip()


def _base(source: str | Path | Recipe) -> Recipe:
    if isinstance(source, Recipe):
        return source
    if str(source) in NAMED:
        data: dict[str, Any] = {"name": str(source)}
        for field, value in NAMED[str(source)].items():
            _put(data, field, value)
        return _validated(data)
    file = Path(source)
    if file.suffix != ".toml":
        raise LfError(f"no recipe is named '{source}'; {nearest(str(source), NAMED)} A file must end in .toml.")
    try:
        return _validated(tomllib.loads(file.read_text()))
    except OSError as error:
        raise LfError(f"recipe file {file} can't be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LfError(f"recipe file {file} is no TOML: {error}.") from error


def _validated(data: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise LfError(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    """The first mistake as a sentence that names the field."""
    first = error.errors()[0]
    names = [str(part) for part in first["loc"]]
    path = ".".join(names)
    if first["type"] == "extra_forbidden":
        known = _fields_at(names[:-1])
        return f"recipe field '{path}' does not exist; {nearest(names[-1], known)}"
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return f"recipe: {message}."
    return f"recipe field '{path}' = {first['input']!r}: {message[0].lower()}{message[1:]}."


def _fields_at(names: list[str]) -> list[str]:
    model: Any = Recipe
    for name in names:
        model = model.model_fields[name].annotation
    return list(model.model_fields)


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        child = data.setdefault(name, {})
        if not isinstance(child, dict):
            raise LfError(f"recipe field '{path}' does not exist; '{name}' is a value, not a section.")
        data = child
    data[last] = value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def _flatten(data: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in data.items():
        rows += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [(prefix + key, value)]
    return rows
