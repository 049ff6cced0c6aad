"""Exposed communication: the part of the gradient exchange that backward did not hide, from DDP's own timers.

DDP times its first ten iterations and every hundredth. The first ones carry the set-up of connections and a single
bucket (buckets are rebuilt after the first), so the figure is the average of iterations 4 to 10: the difference of two
readings.
"""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

FIRST, LAST = 3, 10


class ExposedCommunication:
    """Give it the count of steps done after each step; `milliseconds` is the answer."""

    def __init__(self, model: nn.Module) -> None:
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def after_step(self, done: int) -> None:
        """Take a reading after the third and the tenth step of this process."""
        if self._ddp is None or done not in (FIRST, LAST):
            return
        reading = (done, self._exposed_ms(self._ddp) * done)
        self._first, self._last = (reading, self._last) if done == FIRST else (self._first, reading)

    def milliseconds(self) -> float:
        """Exposed milliseconds a step; 0 with one rank, and where the run was too short to tell."""
        if self._first is None or self._last is None:
            return 0.0
        return max(0.0, (self._last[1] - self._first[1]) / (self._last[0] - self._first[0]))

    def _exposed_ms(self, ddp: DistributedDataParallel) -> float:
        data = ddp._get_ddp_logging_data()
        whole = float(data.get("avg_backward_comm_time", 0))
        hidden = float(data.get("avg_backward_compute_comm_overlap_time", 0))
        return max(0.0, whole - hidden) / 1e6
