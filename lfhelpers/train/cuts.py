"""A step's device batches, cut into pieces that can be had again: what `train.replan` makes a failed step from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lfhelpers.levers.frozen import Pair


class Cuts:
    """The pairs of `source`, each cut into `pieces`; those of a step stay until it is done, and can be had again."""

    def __init__(self, source: Iterator[Pair], pieces: int = 1) -> None:
        self.pieces = pieces
        self._source = source
        self._kept: deque[Pair] = deque()
        self._next = 0
        """The number of the next piece, counted from the first kept pair."""

    def __iter__(self) -> Cuts:
        return self

    def __next__(self) -> Pair:
        whole, piece = divmod(self._next, self.pieces)
        self.fill(whole + 1)
        if whole >= len(self._kept):
            raise StopIteration
        self._next += 1
        return cut(self._kept[whole], self.pieces, piece)

    def fill(self, pairs: int) -> None:
        """Have this many pairs of the source at hand, or as many as it has."""
        while len(self._kept) < pairs and (pair := next(self._source, None)) is not None:
            self._kept.append(pair)

    def done(self, pairs: int) -> None:
        """The step of the first `pairs` pairs is applied: let go of them."""
        for _ in range(pairs):
            self._kept.popleft()
        self._next -= pairs * self.pieces

    def again(self, pieces: int) -> None:
        """Begin anew with the step's first sample, each pair in so many pieces."""
        self.pieces, self._next = pieces, 0


def cut(pair: Pair, pieces: int, piece: int) -> Pair:
    """Piece number `piece` of a pair's rows, in order; sizes differ by one row at most."""
    if pieces == 1:
        return pair
    batch, draws = ({name: value.tensor_split(pieces)[piece] for name, value in part.items()} for part in pair)
    return batch, draws
