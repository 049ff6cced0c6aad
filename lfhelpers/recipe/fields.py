"""The fields of a recipe, section by section, with what each one decides. The defaults are the recipe `competent`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Scalar = str | bool | int | float
Count = Annotated[int, Field(ge=1)]
SLOW_LINK = r"gloo:(?!0*\.?0*GB)(?P<gb_s>\d*\.?\d+)GB/s(,(?P<us>\d+)us)?|nccl:(?P<how>shm|socket|channel)"
"""What ddp.slow_link may say; levers.slow_link does it."""


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
    base: str | None = None
    """Start from these weights: a base's name (`lfhelpers base make NAME`) or folder; none: from random ones."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout inside the action model. Published value 0.2; 0 makes runs comparable to the last bit."""
    compute_logits: bool = False
    """Compute the language model's logits and throw them away, as the published forward does."""
    per_sample_gather: bool = False
    """Copy the embodiment's weights once a sample, as the published layers do."""
    train_unused: bool = True
    """Train the rows of embodiments that the data doesn't have, too: zero gradients, moved and updated each step."""
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
    loader: Literal["auto", "synthetic", "as_found", "webdataset", "threads", "dali", "two_level"] = "webdataset"
    """`synthetic` reuses one batch; `as_found` augments between steps; `webdataset` does all work in workers;
    `threads` decodes in threads of this process; `dali` on the GPU where there is one; `two_level` puts augmentation
    into processes of their own; `auto` measures the last four for a moment and takes the fastest."""
    workers: int | None = Field(None, ge=0)
    """Worker processes or decoding threads a rank; none given: its share of this host's cores less one, 2 to 16."""
    prefetch: Count = 2
    """Batches that each worker keeps ready."""
    depth: Count = 3
    """Batches that each level of `two_level` may hold, and that `threads` and `dali` keep ready."""
    scaled_decode: bool = False
    """`threads` and `two_level` let libjpeg decode at a half, a quarter or an eighth: faster, and other pixels."""
    hw_decoder_load: float = Field(1.0, ge=0, le=1)
    """Share of the JPEGs that `dali` gives to the GPU's JPEG engine; at 0 or 1 each run has the same pixels."""
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
    rand_augment: int = Field(0, ge=0)
    """RandAugment operations a sample; 0: none. Not by `as_found`, whose images come normalised."""
    rand_magnitude: int = Field(9, ge=0, le=30)
    """RandAugment's strength, 0 to 30."""
    mixup: float = Field(0.0, ge=0)
    """MixUp: alpha of the Beta distribution from which each micro-batch's share is drawn; 0: none."""
    aug_on: Literal["device", "workers"] = "device"
    """Where RandAugment and MixUp run: on the training device, or in the second level's processes (`two_level`)."""


class BatchFields(Section):
    """How many samples make one optimizer step: ranks x micro x accumulate."""

    micro: Count = 16
    """Samples a rank and a forward pass."""
    accumulate: Count = 1
    """Forward and backward passes before each optimizer step."""
    replan: bool = False
    """A step that doesn't fit into memory is made again, by all ranks, in smaller micro-batches of the same samples."""
    limit_gib: float | None = Field(None, gt=0)
    """Most memory a rank may take, in GiB: real on a GPU; on a CPU emulated, by weights, states and saved tensors."""


class PrecisionFields(Section):
    """Number formats. Trained weights are always kept in fp32, in the model or as masters in the optimizer."""

    mode: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Autocast dtype; fp16 adds a gradient scaler, bf16 has fp32's range and needs none; tf32 rounds GEMM inputs.
    auto: bf16 where the device has units for it, else fp32; the run's summary says which."""
    frozen_bf16: bool = True
    """Keep frozen weights in bf16 when the mode is bf16, as published."""
    weights: Literal["fp32", "bf16"] = "fp32"
    """Trained matrices in the model; `bf16` puts fp32 masters into the optimizer: no casts, gradients half as large."""
    init_scale: float = Field(65536.0, gt=0)
    """First scale of the fp16 gradient scaler."""
    growth_interval: Count = 2000
    """Steps without overflow before the fp16 scale doubles."""
    deterministic: bool = False
    """Kernels that add in a fixed order, where torch has them: two runs are then equal to the bit, and slower."""


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
    foreach: bool = True
    """Without `fused`: multi-tensor operators; false: a Python loop over the parameters."""
    states: Literal["fp32", "int8"] = "fp32"
    """AdamW's moments; `int8` keeps them in blocks of 8-bit numbers (torchao), on fp32 weights."""
    clip_norm: float = Field(1.0, ge=0)
    """Largest global gradient norm; 0: no clipping."""
    max_skips: Count = 50
    """Steps in a row without a finite loss and gradients after which the run is ended."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up."""
    warmup: float = Field(0.05, ge=0, lt=1)
    """Share of all steps over which the learning rate rises linearly."""


class DdpFields(Section):
    """DistributedDataParallel's options, used when there is more than one rank."""

    bucket_mb: float | None = Field(None, gt=0)
    """Bucket size in MiB, after a first one of at most 4; none: torch's default, 1 MiB and 25 MiB after it."""
    bucket_list_mb: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """The buckets' sizes one by one, in MiB, as gradients become ready; the last one repeats. Instead of bucket_mb."""
    bucket_view: bool = True
    """Gradients are views into the buckets: no second set of gradients."""
    in_place: bool = False
    """Average gradients where backward leaves them, in grouped messages as large as the buckets would be, without DDP.
    """
    find_unused: bool = False
    """Search the graph for unused parameters in every step, as copied configurations do."""
    static_graph: bool = False
    """Promise that the graph never changes."""
    freeze_unused: bool = False
    """Before the run, name the parameters that get no gradient from a first batch, and freeze them."""
    check_every: int = Field(0, ge=0)
    """Steps between comparisons of all ranks' weights; 0: only the gradients of the first steps are compared."""
    slow_link: str | None = None
    """Slow the link on purpose, measured first and named in every report: `gloo:0.5GB/s` or `gloo:0.5GB/s,100us` on
    CPUs; on GPUs `nccl:shm` (no NVLink), `nccl:socket` (TCP alone) or `nccl:channel` (one channel)."""

    @field_validator("slow_link")
    @classmethod
    def _link(cls, text: str | None) -> str | None:
        if text is not None and not re.fullmatch(SLOW_LINK, text):
            raise ValueError("write gloo:0.5GB/s, gloo:0.5GB/s,100us, nccl:shm, nccl:socket or nccl:channel")
        return text
    hook: Literal["none", "bf16", "fp16", "powersgd", "onebit_adam"] = "none"
    """How gradients cross between ranks: whole, in 16 bits, as factors of low rank, or as the signs of the momentum."""
    powersgd_rank: Count = 4
    """Columns of the factors into which `powersgd` decomposes a matrix of gradients."""
    powersgd_start: int | None = Field(None, ge=2)
    """Steps that `powersgd` exchanges whole; none given: a tenth of the run."""
    onebit_warmup: int | None = Field(None, ge=2)
    """Steps that `onebit_adam` exchanges whole, until it freezes the second moment; none given: a fifth of the run."""
    shard_optimizer: bool = False
    """Each rank updates its n-th of every parameter and keeps those optimizer states alone (ZeRO stage 1). Gradients
    are sent where they lie, as with in_place."""


class CompileFields(Section):
    """torch.compile, and kernels of our own beside it."""

    scope: Literal["none", "blocks", "model"] = "none"
    """`blocks` compiles each repeated block in place, so that DDP's overlap survives; `model` the whole model."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """torch.compile's mode."""
    cache: bool = True
    """Keep compiled kernels across runs, keyed by code, versions and hardware."""
    recompile_limit: Count = 8
    """Forms of one function (shapes, with gradient or without) that are compiled before the run is ended."""
    ffn: Literal["off", "auto", "torch", "triton", "cuda"] = "off"
    """Gated FFNs with one product for both first weights, and less kept for backward: by torch's operators, a kernel in
    Triton or one in CUDA C++; `auto` measures each once per shape, what torch.compile makes too; `off`: as they are."""


class GraphFields(Section):
    """CUDA graphs: many kernels, one launch."""

    scope: Literal["none", "micro", "step"] = "none"
    """`micro` records a micro-batch's forward and backward, `step` all of a step up to the zeroed gradients."""
    warmup: int = Field(11, ge=3)
    """Ordinary steps before recording; DDP needs 11."""


class FrozenFields(Section):
    """The part of the model that isn't trained."""

    ahead: bool = False
    """Compute it for the next micro-batch beside the present one's update and gradient exchange."""
    packed: bool = False
    """Lay its weights out for the matrix units: query, key and value as one product, widths padded, GELU fused."""


class ActivationFields(Section):
    """What backward finds saved, and what it computes again (levers.activations)."""

    plan: Literal["none", "all", "blocks", "ops", "budget"] = "none"
    """`all` saves only the inputs of each block, `blocks` of those in `blocks`; `ops` saves the results of matrix
    products and attention in each block; `budget` leaves the choice to torch.compile."""
    blocks: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Numbers of the blocks that are computed again, as the workload counts them (levers.activations_plan chooses)."""
    recompute_every: int = Field(0, ge=0)
    """With `ops`: each how-manieth matrix product is computed again all the same; 0: none, 2: every second."""
    budget: float = Field(0.5, ge=0, le=1)
    """With `budget`: the share of its usual bytes that each compiled graph may save."""
    loss_rows: int = Field(0, ge=0)
    """Samples whose logits the text loss holds at a time, computed again in backward; 0: those of all samples."""


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
    profile: bool = False
    """Record a trace of three of the last steps on each rank, for `lfhelpers diagnose`; they are not timed."""


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
    episodes: int = Field(0, ge=0)
    """Held-out episodes for the success rate in the closed loop; 0: none."""
    words: int = Field(0, ge=0)
    """Held-out scenes for captions and questions, which need workload.text_loss; 0: none."""
    every: int = Field(0, ge=0)
    """Steps between measurements inside the run, the learning curve of its summary; 0: at its ends alone."""
    task: str | int = 3
    """What is evaluated: a number of distractors, or the name of a task."""
