"""The loader without processes: decoding threads of the training process fill one uint8 batch each after the other.

Nothing is forked, pickled or copied between processes, and JPEGs go the short way of `turbo`: twice and more the speed
of a DataLoader with as many workers. The price is the interpreter lock, which a training loop full of Python shares
with the threads, and that a crash inside a decoder takes the run with it. With `data.scaled_decode` other pixels are
delivered, one or two levels of 255 from the exact ones on average; evaluation always uses the exact ones.

Batches are new tensors, never recycled by hand. A copy to the GPU may still read page-locked memory long after its
batch was dropped; torch's own allocator of such memory waits for exactly that before it hands a block out again, and
keeps the blocks, so that no batch after the first few costs an allocation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType

import torch
from torch import Tensor

from lfhelpers.data import quarantine
from lfhelpers.data.decoding import DecodePool, Filled
from lfhelpers.data.loader import Batch, Request


class ThreadLoader:
    """Delivers the plan's batches while `data.depth` later ones are being filled; threads start with the first batch.

    Images are uint8 [B, V, P, P, 3]. Reading ahead stops at that depth until the consumer takes a batch. An error in a
    thread is raised where its batch would have come.
    """

    def __init__(self, request: Request) -> None:
        threads = request.workers()
        self._request, self._pin = request, request.pin()
        self._depth = request.job.data.depth if threads else 0  # without threads each batch is made when asked for
        self._pool = DecodePool(request, threads)
        self._record = quarantine.Record(request, request.bad) if request.bad else None

    def __iter__(self) -> Iterator[Batch]:
        ahead, begun = self._request.sequence(), deque[tuple[Tensor, Future[Filled]]]()
        try:
            for step, micro in self._request.sequence():
                while len(begun) <= self._depth and (place := next(ahead, None)):
                    begun.append(self._begin(*place))
                images, filled = begun.popleft()
                others, faults = filled.result()
                if self._record:
                    self._record(step, micro, faults)
                if self._pin:
                    others = {name: tensor.pin_memory() for name, tensor in others.items()}
                yield others | {"images": images}
        finally:
            self.close()

    def __len__(self) -> int:
        return self._request.batches()

    def close(self) -> None:
        """End the threads and wait for them. Further calls do nothing."""
        self._pool.close()

    def __enter__(self) -> ThreadLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _begin(self, step: int, micro: int) -> tuple[Tensor, Future[Filled]]:
        """A batch's memory, made in the consumer's thread: page-locking belongs to its device, not to the first one."""
        fields = self._request.fields
        images = torch.empty(self._request.plan.micro, len(fields.images), fields.size, fields.size, 3,
                             dtype=torch.uint8, pin_memory=self._pin)
        return images, self._pool.start(step, micro, images.numpy())


def make(request: Request) -> ThreadLoader:
    """A loader of uint8 batches [B, V, P, P, 3], page-locked where asked for and there is a GPU."""
    return ThreadLoader(request)
