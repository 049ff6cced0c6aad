"""Recomputation: blocks that save little in forward, and compute again in backward what they did not save.

Saved activations grow with the batch, and most of them cost little to compute again. A block's class is exchanged for
one that runs the same forward inside torch's checkpoint, always the non-reentrant one: it works with frozen inputs,
with a block that is used twice under DDP, and inside a compiled block. Names, parameters and state_dict stay as they
are. Apply before compilation: the checkpoint then lies inside the compiled block, whose partitioner keeps what it is
told to keep and fuses what is computed again into backward's kernels, and nothing asks the host while a CUDA graph is
recorded. The price is the time of a second forward of what was not saved.

Sources: torch.utils.checkpoint and its selective contexts; torchtitan keeps matrix products and attention alike.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from lfhelpers.errors import LfError
from lfhelpers.measure import memory
from lfhelpers.recipe import Recipe

_ATEN = torch.ops.aten
PRODUCTS = frozenset((
    _ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN._scaled_mm.default))
"""Matrix products: dear to compute again."""
GATED = "lfhelpers::swiglu_down"
"""A gated FFN's second product with what stands before it (levers.gated_ffn_op), where `compile.ffn` puts it in."""
ATTENTION = frozenset((
    _ATEN._scaled_dot_product_flash_attention.default, _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default, _ATEN._scaled_dot_product_flash_attention_for_cpu.default))
"""Attention, whose arithmetic grows with the square of the length."""
_KINDS: dict[tuple[type, int | None, bool], type] = {}
"""Recomputing classes made so far, so that all plans share a class, and with it its compiled code."""


def apply(job: Recipe, blocks: Sequence[nn.Module], device: torch.device, ranks: int = 1) -> None:
    """Make the blocks that the plan names recompute, in place; must run before compilation and DDP.

    Raises LfError where a number is no block's, a block keeps running statistics, or the whole model is compiled.
    """
    plan = job.activations.plan
    if plan in ("none", "budget"):
        return
    if job.compile.scope == "model":
        why = ("DDP cuts compiled code at its buckets and can't cut a recomputed region" if ranks > 1 else
               "each block's first call proves it, eagerly, and would cut the model's graph there for good")
        raise LfError(f"activations.plan='{plan}' with compile.scope='model': {why}; set compile.scope='blocks'.")
    recorded = job.graph.scope != "none" and device.type == "cuda" and job.compile.scope == "none"
    for index in _chosen(job, len(blocks)):
        if trouble := obstacle(blocks[index], index):
            raise LfError(f"activations.plan: {trouble}; leave the block out with activations.plan='blocks', or take "
                          "GroupNorm.")
        blocks[index].__class__ = recomputing(type(blocks[index]), job.activations.recompute_every
                                              if plan == "ops" else None, not recorded)


def recomputing(kind: type[nn.Module], every: int | None = None, restore_random: bool = True) -> type[nn.Module]:
    """A class like `kind` whose forward saves its inputs alone, and computes the rest again in backward.

    every: save matrix products and attention too, but for every so-manieth product (0: all saved); None: save none.
    restore_random: draw the same random numbers again; impossible, and refused where it matters, inside a CUDA graph.
    """
    key = kind, every, restore_random
    if key not in _KINDS:
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": restore_random}
        if every is not None:
            options["context_fn"] = functools.partial(_selective, every)
        _KINDS[key] = type(kind.__name__, (kind,), {
            "forward": _forward(kind, options), "__call__": _call(kind, restore_random), "recomputes": True,
            "__module__": kind.__module__, "__qualname__": kind.__qualname__})
    return _KINDS[key]


def obstacle(block: nn.Module, number: int) -> str | None:
    """Why a block can't be recomputed, by its number and names; None where it can. BatchNorm would count twice."""
    for name, module in block.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            return (f"block {number} ({type(block).__name__}) holds {type(module).__name__} '{name}', whose running "
                    "statistics recomputation would update twice")
    return None


def recomputes(block: nn.Module) -> bool:
    """Whether a plan has been applied to this block."""
    return bool(getattr(block, "recomputes", False))


@contextlib.contextmanager
def budget(job: Recipe) -> Iterator[None]:
    """Inside, graphs are compiled under the plan's memory budget. It bounds what is saved, not the peak."""
    import torch._functorch.config as functorch

    share = job.activations.budget if job.activations.plan == "budget" else 1.0
    with functorch.patch(activation_memory_budget=share):
        yield


def _forward(kind: type[nn.Module], options: dict[str, Any]) -> Callable[..., Any]:
    """The recomputing forward of a class."""
    inner: Any = kind.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return inner(self, *args, **kwargs)
        return checkpoint(inner, self, *args, **options, **kwargs)
    return _own_code(forward, kind)


def _call(kind: type[nn.Module], restore_random: bool) -> Callable[..., Any]:
    """A class's call, which proves a block in its first one, before and outside of whatever has been compiled of it."""
    inner: Any = kind.forward
    outer: Any = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "_proven" not in self.__dict__ and torch.is_grad_enabled():
            _prove(self, inner, args, kwargs, restore_random)
        return outer(self, *args, **kwargs)
    return _own_code(call, kind)


def _own_code(function: Any, kind: type[nn.Module]) -> Callable[..., Any]:
    """The function with a code object for this class alone, since dynamo counts recompilations by code object."""
    code = function.__code__.replace(co_name=kind.__name__)
    return types.FunctionType(code, globals(), function.__name__, None, function.__closure__)


def _selective(every: int) -> tuple[Any, Any]:
    """Contexts of forward and recomputation that agree on what is saved; torch asks for a pair in each forward."""
    products = {False: itertools.count(1), True: itertools.count(1)}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator in PRODUCTS or operator.name() == GATED:
            number = next(products[context.is_recompute])
            keep = not every or number % every != 0
        else:
            keep = operator in ATTENTION
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
    contexts = create_selective_checkpoint_contexts(policy)
    if not torch.compiler.is_compiling():
        memory.tell_of_cache(contexts[0])
    return contexts


def _chosen(job: Recipe, count: int) -> Sequence[int]:
    if job.activations.plan != "blocks":
        return range(count)
    for index in job.activations.blocks:
        if index >= count:
            raise LfError(f"recipe field 'activations.blocks' = {index}: the model has {count} blocks, numbered from 0 "
                          f"to {count - 1}.")
    return job.activations.blocks


@torch._disable_dynamo  # and not torch.compiler.disable, which would load the compiler for every rank
@torch.no_grad()
def _prove(block: Any, inner: Any, args: Any, kwargs: Any, restore_random: bool) -> None:
    """Run a block twice on its first real inputs; LfError by its name where the second time differs.

    torch itself compares shapes alone, and a block that changes its own state would get wrong gradients unseen.
    """
    before, cached = [buffer.clone() for buffer in block.buffers()], torch.is_autocast_cache_enabled()
    devices = list({value.device for value in [*args, *block.parameters()] if isinstance(value, Tensor)
                    and value.device.type == "cuda"})
    torch.set_autocast_cache_enabled(False)  # a weight's cast made here knows no gradient, and would be used later
    try:
        with torch.random.fork_rng(devices):
            random = _random(devices)
            first = inner(block, *args, **kwargs)
            draws = any(not torch.equal(old, new) for old, new in zip(random, _random(devices), strict=True))
        with torch.random.fork_rng(devices):
            second = inner(block, *args, **kwargs)
    finally:
        torch.set_autocast_cache_enabled(cached)
    name = type(block).__name__
    if draws and not restore_random:
        raise LfError(f"activations.plan: block {name} draws random numbers, which can't be drawn again inside a CUDA "
                      "graph; set compile.scope='blocks', graph.scope='none', or workload.dropout=0.")
    if any(not torch.equal(old, new) for old, new in zip(before, block.buffers(), strict=True)):
        raise LfError(f"activations.plan: block {name} changes its buffers in forward, which recomputation would do "
                      "twice; leave it out with activations.plan='blocks'.")
    if not _same(first, second):
        raise LfError(f"activations.plan: block {name} gives another result when it is run again on the same inputs, "
                      "so its gradients would be wrong; leave it out with activations.plan='blocks'.")
    block.__dict__["_proven"] = True


def _random(devices: Sequence[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _same(first: Any, second: Any) -> bool:
    """Equal but for the order of roundings, which a GPU's atomics may change."""
    try:
        torch.testing.assert_close(second, first, equal_nan=True)
    except AssertionError:
        return False
    return True
