"""The frozen part of the next micro-batch, computed beside what the present one leaves of the GPU.

A frozen prefix (in `vla`: vision, connector and the lower decoder layers) doesn't depend on the update, so its forward
pass for the next micro-batch may run on a second stream beside clipping, optimizer and gradient exchange, which move
bytes and leave the matrix units idle. The arithmetic is the same, and so are the results, to the bit. The price: inputs
are needed one micro-batch early, and both sides share the GPU, so less is gained than the shorter of them takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Batch = dict[str, Tensor]
Pair = tuple[Batch, Batch]


class InTurn:
    """The pairs as they come, with nothing computed ahead: nothing to launch, nothing held."""

    def __init__(self, source: Iterator[Pair]) -> None:
        self._source = source

    def __iter__(self) -> InTurn:
        return self

    def __next__(self) -> Pair:
        return next(self._source)

    def launch(self) -> None:
        """Nothing, as in Ahead without a pair to come."""

    def held(self) -> Pair | None:
        """None: each pair is taken whole."""
        return None


class Ahead:
    """An iterator of (batch, draws) whose batches have the frozen part's results in place of its inputs.

    `launch` begins the next pair's frozen part on a stream of its own; the next `next` waits for it on the device. What
    was not launched is computed when it is asked for. `held` is a pair that an earlier Ahead has launched already.
    """

    def __init__(self, source: Iterator[Pair], frozen: Callable[[Batch], Batch], stream: torch.cuda.Stream | None,
                 held: Pair | None = None) -> None:
        self._source = source
        self._frozen = frozen
        self._stream = stream
        self._held = held
        self._running = False

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Pair:
        held, self._held = self.held(), None
        if held is not None:
            return held
        batch, draws = next(self._source)
        return self._frozen(batch), draws

    def launch(self) -> None:
        """Begin the next pair's frozen part, if there is one, after all that the present stream has been given."""
        pair = next(self._source, None)
        if pair is None:
            return
        batch, draws = pair
        if self._stream is None:  # a CPU has one stream: the same order of work, nothing beside it
            self._held = self._frozen(batch), draws
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        _used_on(self._stream, batch)
        with torch.cuda.stream(self._stream):
            self._held = self._frozen(batch), draws
        self._running = True

    def held(self) -> Pair | None:
        """The pair that was launched and not yet taken, once the present stream may read it."""
        if self._running and self._held is not None and self._stream is not None:
            present = torch.cuda.current_stream()
            present.wait_stream(self._stream)
            _used_on(present, self._held[0])
            self._running = False
        return self._held


def _used_on(stream: torch.cuda.Stream, batch: Batch) -> None:
    """Tell the allocator not to hand the memory out while `stream` reads it; a graph's own memory never is."""
    if not torch.cuda.is_current_stream_capturing():
        for value in batch.values():
            value.record_stream(stream)
