"""The table of levers: what each optimisation changes in the recipe, when it can't be pulled, what it does to results.

The named recipes are points on this ladder: `as_found` with every lever up to `competent` is `competent`, and with all
of them it is `full` (a test holds the two files together).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lfhelpers.recipe import Recipe, recipe

Equivalence = Literal["exact", "reordered", "changed"]
FAST_LINK = 50.0
"""GB/s of a 400 Gbit/s network card; NVLink carries hundreds, and there a bf16 hook made steps longer."""


@dataclass(frozen=True)
class Machine:
    """What decides whether a lever can be pulled."""

    device: Literal["cpu", "cuda"]
    ranks: int
    compiler: bool = True
    link_gb_s: float | None = None
    """What an all-reduce between the ranks reaches (measure.link), in GB/s; None where nobody has measured."""
    own: bool = False
    """The workload is a user's: what is wasted in the built-in model's code isn't there."""
    frozen: bool = True
    """The workload can compute its frozen part by itself."""
    bf16: bool = True
    """The device has units for bf16 (measure.formats)."""


@dataclass(frozen=True)
class Lever:
    """One optimisation: the fields it sets, what it does to results, and why it can't be pulled on some machines."""

    name: str
    why: str
    fields: Mapping[str, Any]
    equivalence: Equivalence
    obstacle: Callable[[Machine], str | None] = lambda machine: None

    def pull(self, job: Recipe) -> Recipe:
        """The recipe with this lever pulled."""
        return job.with_(**self.fields)


def _needs_gpu(machine: Machine) -> str | None:
    return None if machine.device == "cuda" else "there is no GPU to copy to"


def _needs_gpu_for_graphs(machine: Machine) -> str | None:
    return None if machine.device == "cuda" else "there is no GPU, and a CPU has no graphs to record"


def _needs_gpu_for_streams(machine: Machine) -> str | None:
    if not machine.frozen:
        return "the workload has no frozen(model, batch), so nothing can be computed ahead"
    return None if machine.device == "cuda" else "there is no GPU, and a CPU runs one thing after the other"


def _needs_gpu_for_kernels(machine: Machine) -> str | None:
    return None if machine.device == "cuda" else "there is no GPU to compare kernels on"


def _needs_bf16(machine: Machine) -> str | None:
    return None if machine.bf16 else "the device has no units for bf16, so products would only get slower"


def _needs_vla(machine: Machine) -> str | None:
    return "it mends the built-in model's own code; look for the same waste in yours" if machine.own else None


def _needs_ranks(machine: Machine) -> str | None:
    return None if machine.ranks > 1 else "one rank exchanges no gradients"


def _needs_nccl(machine: Machine) -> str | None:
    return _needs_ranks(machine) or (None if machine.device == "cuda" else
                                     "gloo, which carries gradients between CPUs, copies what it sends in any case")


def _needs_slow_link(machine: Machine) -> str | None:
    if machine.ranks > 1 and machine.link_gb_s is not None and machine.link_gb_s >= FAST_LINK:
        return (f"the link carries {machine.link_gb_s:.0f} GB/s, so backward hides the exchange, and compressing it "
                f"only takes memory bandwidth from backward (worth a try below {FAST_LINK:.0f} GB/s)")
    return _needs_ranks(machine)


def _needs_compiler(machine: Machine) -> str | None:
    return None if machine.compiler else "torch.compile finds no C++ compiler; install g++"


COMPETENT = (
    Lever("workers do all preprocessing", "decode, crop and jitter leave the training process; uint8 crosses to it",
          {"data.loader": "webdataset", "data.workers": None}, "exact"),
    Lever("asynchronous copy", "the next batch is copied beside the running step, out of page-locked memory",
          {"data.pin": True, "data.async_copy": True}, "exact", _needs_gpu),
    Lever("no wasted logits", "nobody reads the language model's logits", {"workload.compute_logits": False}, "exact",
          _needs_vla),
    Lever("shared embodiment weights", "one matrix for all samples of an embodiment, instead of a copy for each",
          {"workload.per_sample_gather": False}, "reordered", _needs_vla),
    Lever("fused AdamW", "normalise, clip and update in one kernel", {"optimizer.fused": True}, "reordered"),
    Lever("lean DDP", "gradients live in the buckets, and no search for unused parameters",
          {"ddp.bucket_view": True, "ddp.find_unused": False}, "exact", _needs_ranks),
    Lever("no read in the step", "the loss stays on the device until it is logged", {"log.loss_item": False}, "exact"),
)
BEYOND = (
    Lever("measured loader", "the engine that a short measurement finds to be the fastest on this machine",
          {"data.loader": "auto"}, "reordered"),
    Lever("compiled blocks", "small operators of a block become few kernels", {"compile.scope": "blocks"},
          "reordered", _needs_compiler),
    Lever("CUDA graph", "a step's thousands of kernels are launched as one", {"graph.scope": "step"}, "reordered",
          _needs_gpu_for_graphs),
    Lever("only rows that the data has", "weights of embodiments that are not there get no gradients and no update",
          {"workload.train_unused": False}, "exact", _needs_vla),
    Lever("bf16 weights", "fp32 masters in the optimizer: no casts, and gradients half as large",
          {"precision.weights": "bf16"}, "reordered", _needs_bf16),
    Lever("packed frozen weights", "query, key and value in one product, widths padded to 128, GELU in the product",
          {"frozen.packed": True}, "reordered", _needs_vla),
    Lever("frozen part ahead", "the next batch's frozen part is computed beside this one's update",
          {"frozen.ahead": True}, "exact", _needs_gpu_for_streams),
    Lever("large buckets", "NVLink reaches its rate with 100 MB messages", {"ddp.bucket_mb": 100.0},
          "reordered", _needs_ranks),
    Lever("gradients in place", "grouped messages instead of buckets: no copy, no division, nothing to zero",
          {"ddp.in_place": True}, "reordered", _needs_nccl),
    Lever("sharded optimizer", "each rank updates its share and keeps those states alone: 1/n of memory and update",
          {"ddp.shard_optimizer": True}, "reordered", _needs_nccl),
)
LEVERS = COMPETENT + BEYOND
BESIDE = (
    Lever("bf16 gradients on the wire", "half the bytes, for a cast on either side", {"ddp.hook": "bf16"}, "changed",
          _needs_slow_link),
    Lever("PowerSGD", "matrices cross as factors of low rank", {"ddp.hook": "powersgd"}, "changed", _needs_slow_link),
    Lever("1-bit Adam", "momentum crosses as signs, once the second moment is frozen",
          {"ddp.hook": "onebit_adam"}, "changed", _needs_slow_link),
    Lever("fused gated FFN", "one product for two weights, one kernel after it, and about half is kept for backward",
          {"compile.ffn": "auto"}, "reordered", _needs_gpu_for_kernels),
    Lever("recomputed blocks", "each block saves only its inputs and runs again in backward: memory for time",
          {"activations.plan": "all"}, "reordered"),
    Lever("recomputed pointwise work", "products and attention are kept, what is cheap runs again in backward",
          {"activations.plan": "ops"}, "reordered"),
)
"""Not on the ladder: they pay on some links and models only, and some of them change what is learnt."""


def fitting(where: Machine, start: Recipe | None = None) -> Recipe:
    """`start` (as_found if none is given) with every lever of the ladder that can be pulled there."""
    job = start or recipe("as_found")
    for lever in LEVERS:
        job = job if lever.obstacle(where) else lever.pull(job)
    return job


def ladder(start: Recipe | None = None) -> list[tuple[str, Recipe]]:
    """(name, recipe) of each rung: `start` (as_found if none is given), then one lever more at a time."""
    job = start or recipe("as_found")
    rungs = [("as found", job)]
    for lever in LEVERS:
        job = lever.pull(job)
        rungs.append((f"+ {lever.name}", job))
    return rungs


def stack(start: Recipe, machine: Machine) -> Recipe:
    """`start` with every lever of the ladder that this machine can pull."""
    for lever in LEVERS:
        start = start if lever.obstacle(machine) else lever.pull(start)
    return start
