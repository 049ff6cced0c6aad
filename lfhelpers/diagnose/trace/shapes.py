"""What operators had to do, from the shapes that a trace records: floating-point operations and bytes.

Matrix products alone are counted as operations (2 m n k, as usual). Bytes are all inputs, and one output of the largest
input's size: less than what an operator moves when it can't keep its inputs in a cache, so rates are lower bounds.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = ("fp32", "bf16", "fp16", "other")
WIDTHS = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4,
          "unsigned char": 1, "signed char": 1, "bool": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1}
NAMED = {"float": 0, "c10::BFloat16": 1, "c10::Half": 2}
PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""The first matrix's place among the inputs."""


@dataclass(frozen=True)
class Work:
    """By operator, sorted by external id [n]: operations (0: unknown), bytes, and the index in DTYPES."""

    external: NDArray[np.int64]
    flops: NDArray[np.float64]
    moved: NDArray[np.float64]
    dtype: NDArray[np.int64]

    def places(self, external: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of each external id; -1 where nothing is known of it."""
        if not len(self.external):
            return np.full(len(external), -1)
        place = np.searchsorted(self.external, external).clip(max=len(self.external) - 1)
        return np.where(self.external[place] == external, place, -1)


@dataclass
class Gathered:
    """Work as it is read."""

    external: array[int] = field(default_factory=lambda: array("q"))
    flops: array[float] = field(default_factory=lambda: array("d"))
    moved: array[float] = field(default_factory=lambda: array("d"))
    dtype: array[int] = field(default_factory=lambda: array("q"))

    def add(self, name: str, external: int, shapes: Any, types: Any) -> None:
        """Note an operator's work; nothing where its shapes and types aren't recorded."""
        if not isinstance(types, list) or not isinstance(shapes, list):
            return
        sizes = [math.prod(shape) * WIDTHS[kind] for shape, kind in zip(shapes, types, strict=False)
                 if kind in WIDTHS and shape and shape[0].__class__ is int]
        if not sizes:
            return
        self.external.append(external)
        self.flops.append(_product(name, shapes))
        self.moved.append(sum(sizes) + max(sizes))
        self.dtype.append(NAMED.get(types[PRODUCTS.get(name, 0)], 3))

    def done(self) -> Work:
        """All that was noted, sorted."""
        external = np.frombuffer(self.external, np.int64) if self.external else np.zeros(0, np.int64)
        order = np.argsort(external, kind="stable")
        columns = [np.array(column)[order] for column in (self.flops, self.moved, self.dtype)]
        return Work(external[order], columns[0].astype(float), columns[1].astype(float), columns[2].astype(np.int64))


def _product(name: str, shapes: Sequence[Any]) -> float:
    """Operations of a matrix product; 0 for any other operator, and where shapes don't fit."""
    first = PRODUCTS.get(name)
    if first is None or len(shapes) < first + 2:
        return 0.0
    left, right = shapes[first], shapes[first + 1]
    if not left or not right or left[-1] != right[-2]:
        return 0.0
    return 2.0 * math.prod(left) * float(right[-1])
