"""The starvation meter reads the truth: what a run says it waits for data is what it was made to wait.

A loader that makes a batch in `cost` while the step before computes for `step` keeps it waiting for cost - step of each
cost, and not at all where it is the faster one. Loader and step sleep for long enough that what else they do, and who
else uses the machine, stays far below the five points of tolerance; medians leave out a step that was held up. To hand
a batch from process to process takes milliseconds on a busy machine, and waiting for that is waiting, so a thread makes
most of them.
"""

import statistics

import pytest
import torch

from lfhelpers import runs
from lfhelpers.runs import timed
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import Ranks

STEP_MS = 100
POINTS = 5
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU")])


def truth(cost):
    """Percent of the step, for a loader that needs `cost` steps for a batch."""
    return 100 * max(0.0, (cost - 1) / cost)


@pytest.mark.alone
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(("loader", "cost"), [("threads", 0.5), ("threads", 1.0), ("threads", 2.0),
                                              ("webdataset", 2.0)])
def test_the_share_of_waiting_is_what_was_planted(toy_job, loader, cost, device):
    job = toy_job(f"data.loader={loader}", "data.workers=1", "batch.micro=1", "steps=12", "log.skip=3",
                  "workload.use=tests.train.paced:PacedToy", f"workload.options.step_ms={STEP_MS}",
                  f"workload.options.cost_ms={cost * STEP_MS}", f"device={device}")
    run = runs.create(job)
    summary = train(job, run, Ranks(0, 1, torch.device(device, 0)))
    rows = timed(run.steps(), job.log.skip)
    shares = [100 * row["ms"]["data_wait"] / row["step_ms"] for row in rows]
    assert statistics.median(shares) == pytest.approx(truth(cost), abs=POINTS)
    total = 100 * sum(row["ms"]["data_wait"] for row in rows) / sum(row["step_ms"] for row in rows)
    assert summary["report"]["percent"]["data_wait"] == pytest.approx(total), "the summary says what its steps say"
