"""Where training memory goes, in exact bytes: what stands between steps, and what forward saves for backward.

Saved activations are counted through autograd's saved-tensor hooks, which see every tensor that is saved, on any
device, in eager and in compiled code. A storage counts once however many views of it are saved, for whoever saved it
first; a parameter or buffer isn't counted, since it is there anyway; copies of weights that autocast makes are told
apart, since they don't grow with the batch. Selective recomputation keeps tensors past the hooks and tells of them
(`tell_of_cache`). The price: counting makes a step slow, and it names the operator only where code runs eagerly.

Source of the hooks: torch.autograd.graph.saved_tensors_hooks.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

OUTSIDE = "outside blocks"
COMPILED = "compiled code"
INPUTS = "inputs of recomputed blocks"
KEPT = "kept by selective recomputation"
WEIGHT_COPIES = "copies of weights"
"""The `operator` of casts of parameters that autocast keeps for backward."""
_COUNTING: list[Saved] = []


@dataclass(frozen=True)
class Entry:
    """One storage that backward will need."""

    block: str
    operator: str
    bytes: int


@dataclass
class Saved:
    """What forward has saved, one entry a storage, in order."""

    entries: list[Entry] = field(default_factory=list)
    _weights: frozenset[int] = frozenset()
    _seen: set[int] = field(default_factory=set)
    _held: list[Any] = field(default_factory=list)
    """Keeps what was counted alive, so that no storage is taken for a later one at the same address."""
    _block: list[str] = field(default_factory=lambda: [OUTSIDE])
    _operator: list[str] = field(default_factory=list)
    _caches: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Saved activations, without copies of weights."""
        return sum(entry.bytes for entry in self.entries if entry.operator != WEIGHT_COPIES)

    @property
    def weight_copies(self) -> int:
        """Bytes of autocast's copies of weights."""
        return sum(entry.bytes for entry in self.entries if entry.operator == WEIGHT_COPIES)

    def by_block(self) -> dict[str, int]:
        """Bytes of activations by block, in the order of forward; what no block saved under OUTSIDE."""
        return self._by(lambda entry: entry.block)

    def by_operator(self) -> dict[str, int]:
        """Bytes of activations by the operator that saved them, the largest first."""
        found = self._by(lambda entry: entry.operator)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _by(self, name: Callable[[Entry], str]) -> dict[str, int]:
        found: Counter[str] = Counter()
        for entry in self.entries:
            if entry.operator != WEIGHT_COPIES:
                found[name(entry)] += entry.bytes
        return dict(found)

    def _add(self, tensor: Tensor, block: str, operator: str) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._seen or not storage.nbytes():
            return
        self._seen.add(storage._cdata)
        self._held.append(storage)
        copied = _cast_weight(tensor, self._weights)
        self.entries.append(Entry(block, WEIGHT_COPIES if copied else operator, storage.nbytes()))


@contextlib.contextmanager
def counted(model: nn.Module, blocks: Mapping[str, nn.Module] | None = None, eager: bool = True) -> Iterator[Saved]:
    """Count what the forward inside saves; leave before backward. `blocks`: {name: module} to attribute bytes to.

    eager: name operators, for which Python's functions are watched; with compiled blocks it would compile them anew.
    """
    weights = frozenset(tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()])
    saved = Saved(_weights=weights, _seen=set(weights))
    unnamed = INPUTS if eager else COMPILED

    def pack(tensor: Tensor) -> Tensor:
        saved._add(tensor, saved._block[-1], saved._operator[-1] if saved._operator else unnamed)
        return tensor
    _COUNTING.append(saved)
    try:
        with around(blocks or {}, saved._block.append, lambda _: saved._block.pop()), \
                torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), \
                _Operators(saved) if eager else contextlib.nullcontext():
            yield saved
        for block, cache in saved._caches:
            for leaf in tree_leaves(dict(cache.storage)):
                value = getattr(leaf, "val", leaf)
                if isinstance(value, Tensor):
                    saved._add(value, block, KEPT)
    finally:
        _COUNTING.remove(saved)
        saved._caches.clear()
        saved._held.clear()


def tell_of_cache(cache: Any) -> None:
    """Called by who keeps tensors past the hooks: `cache.storage` is a mapping in which they will lie after forward."""
    for saved in _COUNTING:
        saved._caches.append((saved._block[-1], cache))


@contextlib.contextmanager
def around(blocks: Mapping[str, nn.Module], enter: Callable[[str], Any], leave: Callable[[str], Any]) -> Iterator[None]:
    """Call `enter(name)` before and `leave(name)` after each block's forward, outside of what is compiled of it."""
    def saying(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            enter(name)
            try:
                return call(*args, **kwargs)
            finally:
                leave(name)
        return run
    before = {name: block._compiled_call_impl for name, block in blocks.items()}
    try:
        for name, block in blocks.items():
            block._compiled_call_impl = saying(name, before[name] or block._call_impl)
        yield
    finally:
        for name, block in blocks.items():
            block._compiled_call_impl = before[name]


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind these tensors, each once."""
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def standing(model: nn.Module, states: Sequence[Tensor] = ()) -> dict[str, int]:
    """Bytes that stay from step to step: weights, buffers, gradients (as large as they get), optimizer states."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    return {
        "trained weights": unique_bytes(weight for weight in model.parameters() if weight.requires_grad),
        "frozen weights": unique_bytes(weight for weight in model.parameters() if not weight.requires_grad),
        "buffers": unique_bytes(model.buffers()),
        "gradients": sum(weight.nbytes for weight in model.parameters() if weight.requires_grad),
        "optimizer states": unique_bytes(state for state in states
                                         if state.untyped_storage()._cdata not in weights),
    }


class _Operators(TorchFunctionMode):
    """Knows which function Python has called last: it is the one that saves."""

    def __init__(self, saved: Saved) -> None:
        super().__init__()
        self._saved = saved

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._saved._operator.append(getattr(function, "__name__", str(function)).strip("_"))
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self._saved._operator.pop()


def _cast_weight(tensor: Tensor, weights: frozenset[int]) -> bool:
    """Whether only casts and views lie between a parameter and this tensor."""
    node: Any = tensor.grad_fn
    cast = False
    while node is not None and len(node.next_functions) == 1:
        cast |= node.name().startswith("ToCopy")
        node = node.next_functions[0][0]
        if hasattr(node, "variable"):
            return cast and node.variable.untyped_storage()._cdata in weights
    return False
