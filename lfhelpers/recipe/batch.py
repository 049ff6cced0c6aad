"""What contradicts batch.replan in the rest of a recipe, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lfhelpers.recipe import Recipe


def contradictions(job: Recipe) -> list[tuple[bool, str]]:
    """(whether it is there, the sentence that names the fields) of each contradiction."""
    if not job.batch.replan:
        return []
    recording = job.compile.scope != "none" and job.compile.mode in ("reduce-overhead", "max-autotune")
    return [
        (job.graph.scope != "none",
         "batch.replan needs graph.scope='none': a recorded step takes the same memory in every replay, so find a "
         "batch.micro that fits before the run, and set batch.replan=false"),
        (recording,
         f"batch.replan accumulates, which compile.mode='{job.compile.mode}' can't (pytorch issue 169545); take "
         "'max-autotune-no-cudagraphs'"),
        (job.precision.weights == "bf16",
         "batch.replan accumulates, and precision.weights='bf16' would round the sum; take precision.weights='fp32'"),
        (not job.optimizer.fused,
         "batch.replan needs optimizer.fused=true: an unfused update that runs out of memory leaves moments half "
         "updated, the fused kernel takes no memory once it has begun"),
        (job.ddp.static_graph or job.ddp.find_unused,
         "batch.replan needs ddp.static_graph=false and ddp.find_unused=false, so that a rank that ran out of memory "
         "can tell which gradients it still owes; take ddp.freeze_unused for parameters that are never used"),
        (job.ddp.hook != "none" or job.ddp.shard_optimizer,
         "batch.replan needs ddp.hook='none' and ddp.shard_optimizer=false: others take memory, or remember a step, "
         "inside the exchange, from which a rank that ran out of memory could not come back"),
        (job.data.mixup > 0,
         "batch.replan cuts a micro-batch into smaller ones, and data.mixup blends rows across the cut; set "
         "data.mixup=0"),
    ]
