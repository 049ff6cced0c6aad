"""Whole jobs that differ in their loader alone: each step is given the same samples and the same pixels.

What the engines deliver is compared batch by batch in tests/data/test_engines.py; here with all that stands between an
engine and a step: the launcher, the feed that copies ahead, and the hash that each run keeps of what it was given.
"""

from pathlib import Path

import pytest

import lfhelpers as lf
from lfhelpers.launch.prepare import prepare

USE = Path(__file__).resolve().parents[2] / "notebooks" / "workloads" / "image_classifier.py"
LOADERS = [("webdataset", 0), ("webdataset", 2), ("threads", 0), ("threads", 2)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """{(engine, workers): run} of short jobs on real pictures, augmented; they run side by side, for none is timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_RUNS", str(tmp_path_factory.mktemp("loaders")))
        job = prepare(lf.recipe("competent", f"workload.use={USE}:ImageClassifier", "batch.micro=8", "steps=6",
                                "log.skip=2", "log.probe=false", "device=cpu"), 1)
        started = {loader: lf.start(job.with_(**{"data.loader": loader[0], "data.workers": loader[1]}))
                   for loader in LOADERS}
        yield {loader: one.wait() for loader, one in started.items()}


@pytest.mark.parametrize("loader", LOADERS[1:])
def test_every_step_has_the_samples_and_pixels_of_any_other_loader(made, loader):
    first, other = made[LOADERS[0]], made[loader]
    assert (other.path / "order-rank-0.jsonl").read_text() == (first.path / "order-rank-0.jsonl").read_text()
    ours, theirs = lf.order_fingerprint(first), lf.order_fingerprint(other)
    assert ours == theirs and ours.digest == theirs.digest
    assert ours.steps == tuple(range(1, 7)) and None not in ours.pixels and len(set(ours.pixels)) == 6


def test_equal_data_train_to_equal_losses(made):
    losses = [[row["loss"] for row in run.steps()] for run in made.values()]
    assert losses == [losses[0]] * len(LOADERS)
