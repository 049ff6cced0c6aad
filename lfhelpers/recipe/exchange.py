"""What contradicts the fields of ddp, among themselves and in the rest of a recipe, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lfhelpers.recipe import Recipe

LEAST = 2
"""DDP lays its buckets out anew after the first step, so one is not enough."""


def contradictions(job: Recipe) -> list[tuple[bool, str]]:
    """(whether it is there, the sentence that names the fields) of each contradiction."""
    hook, sharded, onebit = job.ddp.hook, job.ddp.shard_optimizer, job.ddp.hook == "onebit_adam"
    scaled = job.precision.mode == "fp16"
    return [
        (job.ddp.bucket_mb is not None and bool(job.ddp.bucket_list_mb),
         "ddp.bucket_mb and ddp.bucket_list_mb both give the buckets' sizes; leave one of them out"),
        (job.ddp.freeze_unused and job.ddp.find_unused,
         "ddp.freeze_unused makes the search of ddp.find_unused needless; set ddp.find_unused=false"),
        (job.ddp.static_graph and job.ddp.find_unused,
         "ddp.static_graph and ddp.find_unused exclude each other; set ddp.find_unused=false"),
        (job.ddp.slow_link is not None and job.ddp.slow_link.startswith("gloo") and job.device == "cuda",
         "ddp.slow_link='gloo:...' paces the exchange of CPUs; for device='cuda' take 'nccl:socket'"),
        (job.ddp.slow_link is not None and job.ddp.slow_link.startswith("nccl") and job.device == "cpu",
         "ddp.slow_link='nccl:...' needs GPUs; for device='cpu' take 'gloo:0.5GB/s'"),
        (job.ddp.in_place and (hook != "none" or job.ddp.static_graph or job.ddp.find_unused),
         "ddp.in_place does without DDP, and with it without ddp.hook, ddp.static_graph and ddp.find_unused; leave "
         "them at their defaults"),
        (sharded and (hook != "none" or job.ddp.static_graph or job.ddp.find_unused),
         "ddp.shard_optimizer exchanges gradients in a way of its own, without DDP; leave ddp.hook, ddp.static_graph "
         "and ddp.find_unused at their defaults"),
        (job.ddp.in_place and job.batch.replan,
         "batch.replan repairs DDP's exchange in the middle of a step; set ddp.in_place=false"),
        (hook != "none" and scaled,
         f"ddp.hook='{hook}' with precision.mode='fp16' would send gradients multiplied by the loss scale, which leave "
         "fp16's range and spoil what is kept for the next step; take precision.mode='bf16'"),
        (sharded and scaled,
         "ddp.shard_optimizer with precision.mode='fp16': each rank would see overflows in its own share alone; take "
         "precision.mode='bf16'"),
        (sharded and job.optimizer.states == "int8",
         "ddp.shard_optimizer needs optimizer.states='fp32', whose checkpoints hold for any number of ranks"),
        (hook == "powersgd" and job.precision.weights == "bf16",
         "ddp.hook='powersgd' needs precision.weights='fp32': bf16 has no room for what the factors leave out"),
        (hook in ("powersgd", "onebit_adam") and job.graph.scope != "none",
         f"ddp.hook='{hook}' needs graph.scope='none': the host decides in it, and a CUDA graph has no host"),
        (onebit and not job.optimizer.fused,
         "ddp.hook='onebit_adam' needs optimizer.fused=true: it takes the place of the optimizer's update"),
        (whole(job) >= job.steps,
         f"ddp.hook='{hook}' would exchange the first {whole(job)} of {job.steps} steps whole and compress nothing; "
         "give more steps, or a smaller ddp.powersgd_start or ddp.onebit_warmup"),
    ]


def whole(job: Recipe) -> int:
    """Steps at the start that a compressing hook exchanges whole; 0 for the others."""
    if job.ddp.hook == "powersgd":
        return job.ddp.powersgd_start or max(LEAST, job.steps // 10)
    if job.ddp.hook == "onebit_adam":
        return job.ddp.onebit_warmup or max(LEAST, job.steps // 5)
    return 0
