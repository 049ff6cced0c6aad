"""Which tensors became more between two moments, and who holds them: for naming the owner of a leak.

Python's collector knows every tensor that Python code can reach, on any device, and who refers to it. What a graph has
saved for backward is not among them, but the tensor that keeps the graph alive is. A census looks at all objects of
the process (0.1 s and more), so it is taken only where growth is known already.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor

Kind = tuple[str, tuple[int, ...], str]
"""dtype, shape, and the operator that made it, empty for none."""


@dataclass(frozen=True)
class Census:
    """The tensors of one moment, by kind; `known` tells later ones from them and keeps none alive."""

    counts: Counter[Kind]
    known: dict[int, weakref.ref[Tensor]] = field(repr=False)


@dataclass(frozen=True)
class Grown:
    """A kind of tensor that became more by `count`; `holder` says in words what refers to the newest."""

    kind: Kind
    count: int
    size: int
    """Bytes of the `count` tensors themselves, without the graphs that they may hold."""
    holder: str

    def __str__(self) -> str:
        dtype, shape, made_by = self.kind
        graph = f", each with the whole graph of its {made_by}" if made_by else ""
        return f"{self.count} more tensors of {dtype} {list(shape)}{graph}, held by {self.holder}"


def census() -> Census:
    """Count the tensors that are alive now, after a collection, so that what only waits for one isn't counted."""
    gc.collect()
    found = _tensors()
    return Census(Counter(map(_kind, found)), {id(tensor): weakref.ref(tensor) for tensor in found})


def grown(before: Census, least: int) -> list[Grown]:
    """Kinds of which there are at least `least` more now, those that hold graphs first, then by bytes."""
    gc.collect()
    found = _tensors()
    counts = Counter(map(_kind, found))
    rows = []
    for kind, count in counts.items():
        more = count - before.counts[kind]
        if more < least:
            continue
        fresh = [tensor for tensor in found if _kind(tensor) == kind and not _was_there(before, tensor)]
        if fresh:
            rows.append(Grown(kind, more, more * fresh[-1].nbytes, holder(fresh[-1], (found, fresh))))
    del found
    return sorted(rows, key=lambda row: (row.kind[2] == "", -row.size))


def holder(thing: Any, ignored: tuple[Any, ...] = ()) -> str:
    """What refers to an object, in words: a variable of a function, an attribute, a container and where that lies."""
    if names := _locals(thing):
        return names
    for other in gc.get_referrers(thing):
        if id(other) in map(id, ignored):
            continue
        if isinstance(other, FrameType):
            if other.f_globals.get("__name__") == __name__:
                continue
            return (f"variable {_key(other.f_locals, thing)} of {other.f_code.co_name}, which has ended and whose "
                    "traceback is kept")
        if isinstance(other, (list, tuple, set)):
            where = _locals(other) or _attribute(other) or "that nothing names"
            return f"a {type(other).__name__} of {len(other)}, {where}"
        if isinstance(other, dict):
            return _locals(other) or _attribute(thing) or f"a dict of {len(other)} under {_key(other, thing)!r}"
        return f"a {type(other).__name__}"
    return "code outside Python"


def _attribute(thing: Any) -> str:
    """'attribute x of Y' or 'global x of module', where an object or a module refers to it directly."""
    for other in gc.get_referrers(thing):
        if not isinstance(other, dict):
            if name := _key(getattr(other, "__dict__", {}), thing):
                return f"attribute {name} of {type(other).__name__}"
            continue
        name = _key(other, thing)
        if name and "__name__" in other:
            return f"global {name} of {other['__name__']}"
        for owner in gc.get_referrers(other):
            if name and getattr(owner, "__dict__", None) is other:
                return f"attribute {name} of {type(owner).__name__}"
    return ""


def _key(names: Any, thing: Any) -> Any:
    """The key under which a mapping holds the thing; None for none. A loop, since a generator would refer to it too."""
    for key, value in list(names.items()):
        if value is thing:
            return key
    return None


def _locals(thing: Any) -> str:
    """'variable x of function f (file:line)', among the functions that run now, outside this module."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_globals.get("__name__") != __name__:
                name = _key(frame.f_locals, thing)
                if name is not None:
                    place = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
                    return f"variable {name} of {frame.f_code.co_name} ({place})"
            frame = frame.f_back
    return ""


def _tensors() -> list[Tensor]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]


def _kind(tensor: Tensor) -> Kind:
    made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), made_by


def _was_there(before: Census, tensor: Tensor) -> bool:
    known = before.known.get(id(tensor))
    return known is not None and known() is tensor
