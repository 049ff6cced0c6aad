"""A limit on memory: enforced on a GPU, emulated on a CPU, where none would otherwise be met at small sizes.

On a GPU torch's allocator refuses what would take the process above its share: the error, and what it leaves behind,
are those of a full card. On a CPU nothing refuses, so the bytes are counted that decide on a GPU, what stands between
steps and what forward saves for backward, through saved-tensor hooks; a forward that would pass the limit raises the
same torch.OutOfMemoryError. What an operator needs for a moment isn't counted, and neither is what a recomputed block
keeps; counting costs a Python call for each saved tensor.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lfhelpers.errors import LfError
from lfhelpers.measure.memory import standing

GIB = 2**30
STATES = 8
"""Bytes of AdamW's two moments for each trained number."""


class Budget:
    """Live bytes as a CPU's emulation counts them; a context in which forwards count and the limit holds."""

    def __init__(self, model: nn.Module, limit: float = sys.maxsize) -> None:
        """limit: bytes, of which weights, gradients and AdamW's states take their share."""
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self.standing = sum(standing(model).values()) + STATES * trained
        self.limit = limit
        self.live = self.peak = 0
        """Bytes saved for backward: now, and the most so far."""
        self._weights = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
        self._holders: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def __enter__(self) -> Budget:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> _Held:
        storage = tensor.untyped_storage()
        size = 0 if storage._cdata in self._weights or storage._cdata in self._holders else storage.nbytes()
        if self.standing + self.live + size > self.limit:
            raise torch.OutOfMemoryError(
                f"emulated: tried to save {size / GIB:.3g} GiB beside {(self.standing + self.live) / GIB:.3g} GiB; the "
                f"limit is {self.limit / GIB:.3g} GiB.")
        self.live += size
        self.peak = max(self.peak, self.live)
        self._holders[storage._cdata] = self._holders.get(storage._cdata, 0) + 1
        return _Held(tensor, self)

    def release(self, tensor: Tensor) -> None:
        """One holder of this tensor's storage is gone."""
        storage = tensor.untyped_storage()
        self._holders[storage._cdata] -= 1
        if not self._holders[storage._cdata]:
            del self._holders[storage._cdata]
            self.live -= 0 if storage._cdata in self._weights else storage.nbytes()


class _Held:
    """A saved tensor, counted as long as the graph holds it."""

    def __init__(self, tensor: Tensor, budget: Budget) -> None:
        self.tensor = tensor.detach()  # an operator's own result would hold the operator, and the graph never be freed
        self._budget = budget

    def __del__(self) -> None:
        self._budget.release(self.tensor)


@contextlib.contextmanager
def limited(gib: float | None, model: nn.Module, device: torch.device) -> Iterator[None]:
    """Keep this process under `gib` GiB on the device inside; None: as much as there is.

    Raises LfError where the limit is above what the GPU has, or below what weights and states need on a CPU.
    """
    if gib is None:
        yield
    elif device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory / GIB
        if gib > total:
            raise LfError(f"batch.limit_gib = {gib:g}: {torch.cuda.get_device_name(device)} has {total:.1f} GiB; give "
                          "a smaller limit, or none.")
        torch.cuda.set_per_process_memory_fraction(gib / total, device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
    else:
        budget = Budget(model, gib * GIB)
        if budget.standing > budget.limit:
            raise LfError(f"batch.limit_gib = {gib:g}: weights, gradients and optimizer states alone need "
                          f"{budget.standing / GIB:.3g} GiB; give a larger limit, or a smaller model.")
        with budget:
            yield
