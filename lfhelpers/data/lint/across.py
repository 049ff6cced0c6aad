"""Keys of all shards together, by their hashes: which lie in several, and what samples of the whole set are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lfhelpers.data.lint.survey import OTHER, Survey

Hashes = NDArray[np.uint64]


class Across:
    """The surveys of a set. Costs one sort of all hashes, and a step for each key that lies in several shards.

    several: sorted hashes of those. samples: different keys in the set.
    """

    def __init__(self, surveys: Sequence[Survey]) -> None:
        self._surveys = surveys
        self._keys = np.concatenate([found.keys for found in surveys])
        self._order = np.argsort(self._keys, kind="stable")  # within a key in order of shards
        ordered = self._keys[self._order]
        self.several: Hashes = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        self._first = np.searchsorted(ordered, self.several, "left")
        self._stop = np.searchsorted(ordered, self.several, "right")
        self.samples = len(ordered) - int((self._stop - self._first - 1).sum())

    def repeated(self) -> Iterator[tuple[int, list[tuple[str, ...] | None]]]:
        """(hash, the members as written in each of its shards) of `several`, in order of first appearance; None where
        a shard had too many different signatures to keep them."""
        shard_of = np.repeat(np.arange(len(self._surveys)), [len(found.keys) for found in self._surveys])
        signature_of = np.concatenate([found.signature for found in self._surveys])
        for place in np.argsort(self._order[self._first], kind="stable"):
            parts: list[tuple[str, ...] | None] = []
            for position in self._order[self._first[place]:self._stop[place]]:
                number = signature_of[position]
                parts.append(None if number == OTHER else self._surveys[shard_of[position]].signatures[number])
            yield int(self.several[place]), parts

    @cached_property
    def signatures(self) -> Counter[tuple[str, ...]]:
        """How many samples have which members, those of one key in several shards put together."""
        counts = Counter[tuple[str, ...]]()
        for found in self._surveys:
            alone = found.signature[~np.isin(found.keys, self.several)]
            numbers = np.bincount(alone[alone != OTHER], minlength=len(found.signatures))
            counts.update(dict(zip(found.signatures, numbers.tolist(), strict=True)))
        for _, parts in self.repeated():
            if None not in parts:
                counts[tuple(dict.fromkeys(ext for part in parts for ext in part or ()))] += 1
        return +counts
