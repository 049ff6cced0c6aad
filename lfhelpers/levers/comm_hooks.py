"""How gradients cross the link between ranks: exactly, in 16 bits, as low-rank factors, or as signs.

    hook         bytes of fp32 gradients   results     what it costs
    none         all                       exact       nothing: DDP's own all-reduce
    bf16, fp16   a half                    changed     casts on both sides, 12 bytes of memory traffic a number
    powersgd     rank (n + m) of n m       changed     three small products a matrix, two messages in turn
    onebit_adam  about 1/29 after warm-up  changed     packing and error feedback in the update, beside no computation

Less on the wire pays where the wire is slow. On NVLink it doesn't: the exchange is hidden behind backward already, and
casts compete with backward for memory (a bf16 hook was slower there). Each hook is registered with DDP's
`register_comm_hook` and averages over the ranks, as DDP does. torch's own bf16 hook is refused by DDP without NCCL,
though gloo sums bf16 as well, so it is written out here.

Bytes are counted as one rank sends them in ring algorithms: 2 (n - 1) / n of the payload for an all-reduce among n.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lfhelpers.levers.in_place import WRAPPED, InPlace

Future = torch.futures.Future[Tensor]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Exchange:
    """DDP's own all-reduce; and what every other way to exchange gradients has in common: a count of bytes, a state.

    `bytes_per_step` is counted as hooks run, for the last step; what a CUDA graph replays was counted when recorded.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.bytes_per_step = 0

    def attach(self, model: nn.Module) -> None:
        """Take over the exchange of a model that DDP wraps; one that is not wrapped exchanges nothing.

        Without a hook DDP's own path is left alone, and sends every trained parameter, whatever its gradient.
        """
        if not isinstance(model, WRAPPED):
            return
        if isinstance(model, InPlace) or type(self) is Exchange:
            self.bytes_per_step = 0
            self.count(sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad), 2)
        else:
            model.register_comm_hook(None, lambda _, bucket: self.average(bucket))

    def average(self, bucket: dist.GradBucket) -> Future:
        """Average one bucket over the ranks: DDP's communication hook."""
        return self.exactly(bucket)

    def silent(self) -> contextlib.AbstractContextManager[None]:
        """For the block an update sends nothing, so that ranks drift apart: what remains is a rank's own work."""
        return contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on bit for bit, as plain values and tensors; {} where there is nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this rank's `state_dict`, or from `common` of another rank's."""

    def common(self, state: dict[str, Any]) -> dict[str, Any]:
        """What of a rank's `state_dict` holds for another number of ranks, too."""
        return state

    def report(self) -> dict[str, Any]:
        """For the summary of a run: bytes that this rank sends a step, at its end. May read the device."""
        return {"bytes_per_step": self.bytes_per_step}

    def trouble(self) -> str | None:
        """How the exchange spoilt gradients on this rank, where it did. Reads the device."""
        return None

    def begins(self, bucket: dist.GradBucket) -> None:
        """Count anew when a step's first bucket comes."""
        if bucket.index() == 0:
            self.bytes_per_step = 0

    def count(self, payload: int, factor: int = 1) -> None:
        """Add what is sent of a payload in bytes: `factor` (n - 1) / n of it, 2 for an all-reduce, 1 for its halves."""
        self.bytes_per_step += factor * payload * (self.world - 1) // self.world

    def all_reduce(self, values: Tensor) -> Any:
        """Start to sum over the ranks in place, counted; wait on what is returned."""
        self.count(values.nbytes, 2)
        return dist.all_reduce(values, async_op=True)

    def exactly(self, bucket: dist.GradBucket) -> Future:
        """Average a bucket as DDP does without a hook."""
        self.begins(bucket)
        values = bucket.buffer().div_(self.world)
        return beside(values, self.all_reduce(values).wait)


class Half(Exchange):
    """Gradients in 16 bits on the wire. bf16 has fp32's range; with fp16, numbers that leave its range are counted.

    Counts stay on the device until `report` or `trouble` asks.
    """

    def __init__(self, world: int, dtype: torch.dtype) -> None:
        super().__init__(world)
        self._dtype = dtype
        self._seen: Tensor | None = None

    def average(self, bucket: dist.GradBucket) -> Future:
        """Average one bucket over the ranks: DDP's communication hook."""
        self.begins(bucket)
        whole = bucket.buffer().div_(self.world)  # before the cast, since the sum must not overflow
        half = whole.to(self._dtype)
        if self._dtype == torch.float16:
            self._look(whole, half)
        sending = self.all_reduce(half)

        def widen() -> None:
            sending.wait()
            whole.copy_(half)

        return beside(whole, widen, half)

    def report(self) -> dict[str, Any]:
        """Bytes, and for fp16 the share of nonzero gradients that became 0 on this rank."""
        if self._seen is None:
            return super().report()
        _, lost, nonzero, _ = self._seen.tolist()
        return super().report() | {"flushed_to_zero": lost / max(1.0, nonzero)}

    def trouble(self) -> str | None:
        """Finite gradients above 65,504 so far, of which fp16 makes infinities."""
        if self._seen is None or not (count := int(self._seen[0])):
            return None
        return (f"{count} finite gradients left fp16's range (65504) on the way between the ranks, the largest "
                f"{float(self._seen[3]):.3g}; take ddp.hook='bf16', which has fp32's range")

    def _look(self, whole: Tensor, half: Tensor) -> None:
        """Add up: finite numbers that became infinite, nonzero ones that became 0, nonzero ones; the largest."""
        if self._seen is None:
            self._seen = torch.zeros(4, dtype=torch.float64, device=whole.device)
        finite, nonzero = whole.isfinite(), whole.count_nonzero()
        self._seen[:3] += torch.stack([(finite & half.isinf()).sum(), nonzero - half.count_nonzero(), nonzero])
        self._seen[3] = torch.maximum(self._seen[3], whole.where(finite, 0).abs().amax())


def beside(values: Tensor, work: Callable[[], None], *used: Tensor) -> Future:
    """`values` once `work` is done, which changes them and waits for messages, beside backward.

    On a GPU on a stream of its own, on a CPU in a thread of its own, one after the other, so that each rank's messages
    keep their order. Never in a callback of gloo's: its threads would start the second round of two buckets in any
    order, and abort the process where they hold Python objects at its end. used: tensors made before, for `work`.
    """
    if not values.is_cuda:
        future: Future = torch.futures.Future()
        _thread().submit(_fulfil, future, values, work)
        return future
    stream = _stream(values.device)
    stream.wait_stream(torch.cuda.current_stream())
    for tensor in used:
        tensor.record_stream(stream)
    with torch.cuda.stream(stream):
        work()
        return there(values)


def there(value: Tensor) -> Future:
    """A future that is done; on a GPU, once the present stream has come here."""
    future: Future = torch.futures.Future(devices=[value.device] if value.is_cuda else None)
    future.set_result(value)
    return future


def _fulfil(future: Future, values: Tensor, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # a lost peer: backward, which waits for the future, gets to know
        future.set_exception(error)  # type: ignore[arg-type]  # torch says T, and wants an exception
    else:
        future.set_result(values)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "lfhelpers-exchange")


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
