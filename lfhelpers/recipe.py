"""The recipe: everything that decides how a workload is trained, in one frozen object and one TOML file.

The defaults below are the recipe `competent`; `as_found` and `full` are given as the fields in which they differ,
so that reading NAMED is reading what the playbook changes. Nothing here imports torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lfhelpers.errors import LfError, nearest

Scalar = str | bool | int | float
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A frozen group of fields; an unknown field is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, data: Any) -> Any:
        """TOML has no null, so "none" stands for it where a field may be without a value."""
        if not isinstance(data, Mapping):
            return data
        optional = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {key: None if key in optional and value == "none" else value for key, value in data.items()}


class WorkloadFields(Section):
    """What is trained."""

    use: str = "vla"
    """`vla`, or a class of your own: `path/to/file.py:MyWorkload` or `package.module:MyWorkload`."""
    size: str = "tiny"
    """A size that the workload offers; `vla` has `tiny`, `small` and `full`."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout inside the action model. Published value 0.2; 0 makes runs comparable to the last bit."""
    compute_logits: bool = False
    """Compute the language model's logits and throw them away, as the published forward does."""
    per_sample_gather: bool = False
    """Copy the embodiment's weights once a sample, as the published layers do."""
    tune_vision: bool = False
    """Train the vision tower and the connector too."""
    tune_language: bool = False
    """Train the whole decoder, not only its top layers."""
    tune_top_layers: int | None = Field(None, ge=0)
    """How many of the decoder's top layers are trained; none given: the size's own published share."""
    text_loss: float = Field(0.0, ge=0)
    """Weight of the caption and question loss on the decoder's logits; 0 leaves it out."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Free settings of a workload of your own."""


class DataFields(Section):
    """What is read, and by which engine."""

    path: str | None = None
    """Folder of shards with a manifest; none given: the default tabletop set, made on first use."""
    loader: Literal["synthetic", "as_found", "webdataset"] = "webdataset"
    """`synthetic` reuses one batch; `as_found` augments between steps; `webdataset` does all work in workers."""
    workers: int | None = Field(None, ge=0)
    """Worker processes a rank; none given: its share of this host's cores less one for itself, 2 to 16."""
    prefetch: Count = 2
    """Batches that each worker keeps ready."""
    pin: bool = True
    """Put batches into page-locked memory, so that copies to the GPU can run beside computation."""
    async_copy: bool = True
    """Copy the next batch on a stream of its own while the present step runs."""
    cache_gb: float = Field(50.0, gt=0)
    """Most disk that shards fetched from an address (`path` with ://) may take, in GB."""
    shuffle: Literal["global", "block", "none"] = "global"
    """`global` draws from the whole epoch; `block` permutes inside windows of shards, for near-sequential reads."""
    last: Literal["pad", "drop"] = "pad"
    """The epoch's short last batch: padded with masked samples and applied with its true weight, or dropped."""
    on_bad: Literal["raise", "skip"] = "raise"
    """A sample that can't be read or decoded ends the run, or is replaced, masked and listed in `quarantine/`."""
    max_bad: float = Field(0.01, ge=0, le=1)
    """With `skip`: the share of the dataset, at least ten samples, above which bad samples end the run all the same."""
    augment: bool = True
    """Random crop (0.95) and colour jitter, the same for all views of a sample."""


class BatchFields(Section):
    """How many samples make one optimizer step: ranks x micro x accumulate."""

    micro: Count = 16
    """Samples a rank and a forward pass."""
    accumulate: Count = 1
    """Forward and backward passes before each optimizer step."""


class PrecisionFields(Section):
    """Number formats. Trained weights are always kept in fp32."""

    mode: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Autocast dtype; fp16 adds a gradient scaler, bf16 has fp32's range and needs none."""
    frozen_bf16: bool = True
    """Keep frozen weights in bf16 when `mode` is bf16, as published."""
    init_scale: float = Field(65536.0, gt=0)
    """First scale of the fp16 gradient scaler."""
    growth_interval: Count = 2000
    """Steps without overflow before the fp16 scale doubles."""


class OptimizerFields(Section):
    """AdamW, gradient clipping and the learning-rate schedule."""

    lr: float | None = Field(None, gt=0)
    """Peak learning rate; none given: what the workload suggests for its size."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    eps: float = Field(1e-8, gt=0)
    """Added to AdamW's denominator."""
    weight_decay: float = Field(1e-5, ge=0)
    """Decoupled weight decay."""
    fused: bool = True
    """One kernel for clip, unscale and update; false: torch's unfused update with a clip pass before it."""
    clip_norm: float = Field(1.0, ge=0)
    """Largest global gradient norm; 0: no clipping."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up."""
    warmup: float = Field(0.05, ge=0, lt=1)
    """Share of all steps over which the learning rate rises linearly."""


class DdpFields(Section):
    """DistributedDataParallel's options, used when there is more than one rank."""

    bucket_mb: float | None = Field(None, gt=0)
    """Bucket size in MiB; none: torch's default, a first bucket of 1 MiB and 25 MiB after it."""
    bucket_view: bool = True
    """Gradients are views into the buckets: no copies, and no second set of gradients."""
    find_unused: bool = False
    """Search the graph for unused parameters in every step, as copied configurations do."""
    static_graph: bool = False
    """Promise that the graph never changes."""


class CompileFields(Section):
    """torch.compile."""

    scope: Literal["none", "blocks"] = "none"
    """`blocks` compiles each repeated block in place, so that DDP's overlap survives."""


class LogFields(Section):
    """What is measured and written; none of it synchronises the device inside a step unless it says so."""

    loss_item: bool = False
    """Read the loss with `.item()` in every step, as published loops do: the host waits for the device."""
    skip: int = Field(10, ge=0)
    """First steps that the statistics leave out (warm-up, compilation, worker start-up)."""
    probe: bool = True
    """Profile the last step and count its operators and host reads; that step is not timed."""
    tensorboard: bool = False
    """Write TensorBoard event files into the run folder too."""


class CheckpointFields(Section):
    """Saved state, from which a run continues bit for bit."""

    every: int = Field(0, ge=0)
    """Steps between checkpoints; 0: none but the last."""
    keep: Count = 2
    """How many of the newest are kept."""
    final: bool = False
    """Write one at the end of the run."""


class EvaluateFields(Section):
    """Quality on held-out scenes, measured outside the timed steps."""

    samples: int = Field(0, ge=0)
    """Held-out samples for the open-loop figures at the start and the end of a run; 0: not evaluated."""


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
    log: LogFields = LogFields()
    checkpoint: CheckpointFields = CheckpointFields()
    evaluate: EvaluateFields = EvaluateFields()

    @model_validator(mode="after")
    def _contradictions(self) -> Recipe:
        """Pairs of fields that cannot both hold, named by field."""
        clashes = [
            (self.data.async_copy and not self.data.pin,
             "data.async_copy needs data.pin=true: copies out of pageable memory block the host"),
            (self.ddp.static_graph and self.batch.accumulate > 1,
             "ddp.static_graph with batch.accumulate > 1 stops gradients from synchronising (pytorch issue 187732); "
             "set ddp.static_graph=false"),
            (self.ddp.static_graph and self.ddp.find_unused,
             "ddp.static_graph and ddp.find_unused exclude each other; set ddp.find_unused=false"),
            (self.workload.tune_language and self.workload.tune_top_layers is not None,
             "workload.tune_language trains every layer, so workload.tune_top_layers must not be given"),
            (self.precision.mode == "fp16" and self.device == "cpu",
             "precision.mode='fp16' needs a GPU; take 'bf16' for device='cpu'"),
        ]
        for clash, sentence in clashes:
            if clash:
                raise ValueError(sentence)
        return self

    def with_(self, *overrides: str, **fields: Any) -> Recipe:
        """A changed copy, by strings such as "ddp.bucket_mb=100" or by dotted keywords, `**{"ddp.bucket_mb": 100}`."""
        data = self.model_dump()
        for text in overrides:
            path, value = parse_override(text)
            _put(data, path, value)
        for key, value in fields.items():
            _put(data, key, value)
        return _validated(data)

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
        "ddp.bucket_mb": 100.0,
        "compile.scope": "blocks",
    },
}


def recipe(source: str | Path | Recipe = "competent", *overrides: str, **fields: Any) -> Recipe:
    """A named recipe, a TOML file, or a given recipe, with overrides.

    >>> recipe("as_found", "ddp.bucket_mb=100", steps=200).ddp.bucket_mb
    100.0
    """
    return _base(source).with_(*overrides, **fields)


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
