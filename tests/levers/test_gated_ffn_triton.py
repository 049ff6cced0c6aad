"""The Triton kernels' numerics through Triton's interpreter, in a process that it may take over."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="triton isn't installed")

PROGRAM = """
import torch

from lfhelpers.levers import gated_ffn_op as op
from lfhelpers.levers.gated_ffn_compare import SMALL, errors

shape = SMALL._replace(rows=16, dtype="float16")  # where a GPU rounds to bf16, the interpreter cuts digits off
for seed in range(2):
    ours, eager = (errors(name, torch.device("cpu"), seed, shape) for name in ("triton", "eager"))
    assert all(0 < ours[part] <= 1.5 * eager[part] for part in eager), (ours, eager)
for hidden in (1, 20, 1032):  # the last one takes two tiles, of which one is nearly empty
    torch.manual_seed(hidden)
    packed, weight = torch.randn(3, 2 * hidden, requires_grad=True), torch.randn(4, hidden, requires_grad=True)
    results = []
    for kernel in ("triton", "torch"):
        out = op.gated(packed, weight, kernel)
        results.append([out, *torch.autograd.grad(out.sum(), [packed, weight])])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
gate = torch.tensor([40.0, -40.0, 1e4, -1e4, float("nan")])
packed = torch.cat([gate, torch.ones(5)])[None].repeat(2, 1)
packed[1] = 1
for result in (op.swiglu_down(packed, torch.eye(5), "triton"), *op.swiglu_grad(torch.ones(2, 5), packed, "triton")):
    assert result[1].isfinite().all()
product = op.swiglu_grad(torch.ones(2, 5), packed, "triton")[1][0]
assert product[:4].tolist() == [40.0, product[1].item(), 1e4, 0.0] and -1e-15 < product[1] < 0 and product[4].isnan()
assert op.swiglu_down(packed[:0], torch.eye(5), "triton").shape == (0, 5)
print("equal")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="test_gated_ffn runs the kernels on this machine's GPU")
def test_the_kernels_compute_what_torch_does():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                          env=os.environ | {"TRITON_INTERPRET": "1"})
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr[-2000:]
