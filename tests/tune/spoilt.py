"""A toy workload whose jobs end in all the bad ways, by the positions of two knobs; in one part it learns."""

from __future__ import annotations

import os
import signal

import torch

from tests.train.toy import Toy


class Spoilt(Toy):
    """In two parts: NaN, or out of memory where the optimizer isn't fused. In four: killed with -9."""

    calls = 0

    def loss(self, model, batch, draws):
        self.calls += 1
        error, weight = super().loss(model, batch, draws)
        parts = self.job.batch.accumulate
        if self.calls < 9 or parts == 1:
            return error, weight
        if parts == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.job.optimizer.fused:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return error * torch.nan, weight
