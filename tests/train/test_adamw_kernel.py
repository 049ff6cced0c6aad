"""The Triton kernels' numerics through Triton's interpreter, in a process that it may take over."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="triton isn't installed")

PROGRAM = """
import torch
from torch import nn

from lfhelpers.recipe import recipe
from lfhelpers.train import adamw, adamw_kernel

torch.Tensor.pin_memory = lambda tensor: tensor.clone()  # there is nothing to pin for
torch.cuda.is_current_stream_capturing = lambda: False
fields = recipe("competent", "optimizer.weight_decay=0.1").optimizer


def optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 130), nn.LayerNorm(130), nn.Linear(130, 3))
    return adamw.MasterAdamW(list(model.parameters()), adamw.store_in_bf16(model), fields)


plain, kernel = optimizer(), optimizer()
for step in range(4):
    for one, other in zip(plain.parameters, kernel.parameters):
        one.grad = torch.randn(one.shape).to(one.dtype)
        other.grad = one.grad.clone()
    if step == 3:
        plain.parameters[2].grad = kernel.parameters[2].grad = None
    sums = []
    for table, low in kernel._kernels():
        table.look()
        sums.append(adamw_kernel.squares(table.addresses, table.summed, low))
    torch.testing.assert_close(torch.cat(sums).sum().sqrt(), plain.norm(), rtol=1e-5, atol=0)
    scalars = torch.tensor(0.5), torch.tensor(float(step == 2)), torch.tensor(1e-2), torch.tensor(step)
    plain.step(*scalars)
    kernel._plain = lambda packed: [adamw_kernel.update(table.addresses, table.updated, packed, fields, low)
                                    for table, low in kernel._kernels()]
    kernel.step(*scalars)
    for one, other in zip([*plain.masters, *sum(plain.moments, ())], [*kernel.masters, *sum(kernel.moments, ())]):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-7)
    for weight, master in zip(kernel.parameters, kernel.masters):
        torch.testing.assert_close(weight.data.float(), master, rtol=2**-7, atol=0)
print("equal")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="test_adamw runs the kernels themselves on this machine's GPU")
def test_the_kernels_compute_what_the_plain_update_does():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                          env=os.environ | {"TRITON_INTERPRET": "1"})
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr[-2000:]
