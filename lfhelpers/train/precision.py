"""Mixed precision: which forward runs in which dtype, and the gradient scaler that only fp16 needs.

bf16 has the range of fp32, so its gradients need no scaling (PyTorch AMP recipe). Weights and optimizer states stay
fp32.
"""

from __future__ import annotations

import torch

from lfhelpers.recipe import PrecisionFields

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast for each forward, and the scaler (disabled unless the mode is fp16)."""

    def __init__(self, fields: PrecisionFields, device: torch.device) -> None:
        self.mode = fields.mode
        self._device = device.type
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=fields.init_scale, growth_interval=fields.growth_interval,
            enabled=fields.mode == "fp16")

    def autocast(self) -> torch.autocast:
        """The context of one forward pass."""
        return torch.autocast(self._device, DTYPES[self.mode], enabled=self.mode != "fp32")
