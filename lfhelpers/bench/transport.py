"""What it costs to bring a batch from one process to another: a pickled queue, torch's queue, and the ring.

The consumer asks, the producer has the batch in memory already, and the time until the consumer can read it is taken:
transport alone, one way after the other in each round, so that the machine's drift hits all of them alike. A loader
copies the batch once more after that, into page-locked memory, whatever way it came; "ring, copied out" holds that copy
too, and is what `two_level` pays.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lfhelpers.data.ring import Ring
from lfhelpers.data.spawned import Spawned

if TYPE_CHECKING:  # the producers import this file, and all but one need neither torch nor scipy
    from lfhelpers.measure.record import Row

SHAPE = (32, 3, 224, 224)
DTYPES = ("float32", "uint8")
RATIO = "ring_over_pickle"
_WARM = 3
Fetch = Callable[[], Any]


def measure(rounds: int = 30) -> tuple[list[Row], dict[str, float]]:
    """Milliseconds a batch of SHAPE by each way and dtype, in rows such as "ring float32"; and the check.

    The check is how many times as fast as through a pickled queue a float32 batch is there through the ring.
    """
    from lfhelpers.measure.record import Row

    rows: list[Row] = []
    for dtype in DTYPES:
        with ExitStack() as stack:
            ways = {"pickled queue": stack.enter_context(_queue(_pickling, dtype)),
                    "torch queue": stack.enter_context(_queue(_sharing, dtype)),
                    "ring, copied out": stack.enter_context(_ring(dtype, copied=True)),
                    "ring": stack.enter_context(_ring(dtype, copied=False))}
            times: dict[str, list[float]] = {name: [] for name in ways}
            for number in tqdm(range(_WARM + rounds), desc=f"transport {dtype}", disable=None, leave=False):
                for name, fetch in ways.items():
                    began = time.perf_counter()
                    batch = fetch()
                    if number >= _WARM:
                        times[name].append(1e3 * (time.perf_counter() - began))
                    del batch  # torch's queue would otherwise pay for giving it back in the next way's time
        rows += [Row.of(f"{name} {dtype}", values, "ms") for name, values in times.items()]
    value = {row.name: row.value for row in rows}
    return rows, {RATIO: value["pickled queue float32"] / value["ring float32"]}


def source(dtype: str) -> NDArray[Any]:
    """The batch that every producer sends: numbers 0..255 that differ from place to place."""
    return (np.arange(np.prod(SHAPE)) % 251).astype(dtype).reshape(SHAPE)


@contextmanager
def _queue(target: Callable[..., None], dtype: str) -> Iterator[Fetch]:
    context: Any = multiprocessing.get_context("spawn")
    if target is _sharing:
        import torch.multiprocessing

        context = torch.multiprocessing.get_context("spawn")
    queue, (ours, theirs) = context.Queue(), context.Pipe()
    producer = context.Process(target=target, args=(queue, theirs, dtype), daemon=True)
    producer.start()
    theirs.close()

    def fetch() -> Any:
        ours.send_bytes(b"x")
        return queue.get()

    try:
        fetch()  # it has started
        yield fetch
    finally:
        ours.close()  # its producer ends then
        producer.join(5)
        producer.kill()
        producer.join()
        queue.close()


@contextmanager
def _ring(dtype: str, copied: bool) -> Iterator[Fetch]:
    ring = Ring(2, SHAPE, dtype)
    producer = Spawned("lfhelpers.bench.transport:_filling", [ring], {"dtype": dtype})
    place = np.zeros(SHAPE, dtype)  # as a pinned tensor of torch's cache: its pages are there

    def fetch() -> NDArray[Any]:
        slot = ring.take()
        assert slot is not None
        producer.pipe.send_bytes(bytes([slot]))
        filled = producer.pipe.recv_bytes()[0]
        if copied:
            np.copyto(place, ring[filled])
        ring.give(filled)
        return place if copied else ring[filled]

    try:
        fetch()
        yield fetch
    finally:
        producer.end()
        ring.close()


def _filling(pipe: Connection, rings: list[Ring], settings: Mapping[str, Any]) -> None:
    batch = source(settings["dtype"])
    for asked in _asked(pipe):
        np.copyto(rings[0][asked[0]], batch)
        pipe.send_bytes(asked)


def _pickling(queue: Any, pipe: Connection, dtype: str) -> None:
    batch = source(dtype)
    for _ in _asked(pipe):
        queue.put(batch)


def _sharing(queue: Any, pipe: Connection, dtype: str) -> None:
    """As a DataLoader's worker: each batch into shared memory of its own."""
    import torch

    torch.set_num_threads(1)
    batch = torch.from_numpy(source(dtype))
    for _ in _asked(pipe):
        storage: Any = torch.UntypedStorage._new_shared(batch.nbytes)
        flat = torch.empty(0, dtype=batch.dtype).set_(storage, 0, (batch.numel(),), (1,))
        queue.put(flat.view(batch.shape).copy_(batch))


def _asked(pipe: Connection) -> Iterator[bytes]:
    while True:
        try:
            yield pipe.recv_bytes()
        except (EOFError, ConnectionError):
            return
