"""The job of exchange_ranks.py, run once for all tests that look at what it saw."""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="two ranks need two GPUs")])]
_folder = tempfile.TemporaryDirectory(prefix="lfhelpers-exchange-")  # goes with the process


@functools.cache
def seen(device):
    """What rank 0 printed."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.train.exchange_ranks", f"{_folder.name}/{device}", device],
        cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
