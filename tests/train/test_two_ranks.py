"""Two real ranks: gradients cross once a step, and the result is that of one process on all samples."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_accumulation_over_two_ranks_is_exact_and_exchanges_once_a_step():
    """no_sync around backward alone would exchange four times (accelerate pull request 1726)."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.train.two_ranks"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert seen["exchanges"] == 1, "one bucket holds the toy's gradients, and only the last micro-batch sends it"
    assert seen["ranks_equal"]
    assert seen["values"] == pytest.approx(seen["expected"], rel=1e-5)
    assert seen["difference"] < 1e-6
    assert seen["threads"] > 0 and seen["threads_left"] == 0, \
        "a group that outlives its destruction aborts the interpreter's end (train.ranks.joined)"
