"""Probes of a step run in processes of their own: exact bytes on a CPU, and a crash there is a point here."""

import itertools
import os
import signal

import pytest
import torch

from lfhelpers.errors import LfError
from lfhelpers.levers.batch import DoesNotFit
from lfhelpers.recipe import recipe
from lfhelpers.train.fit import footprint, largest
from tests.train.toy import batches

STANDING, ROW = 928, 60
"""Bytes of the toy's weights, gradients and AdamW states, and of what a row of its batch saves."""


def pairs(job, device):
    return itertools.cycle([tuple({name: value.to(device) for name, value in part.items()} for part in pair)
                            for pair in batches(2, job.batch.micro)])


def killed(job, device):
    os.kill(os.getpid(), signal.SIGKILL)


def mistaken(job, device):
    raise ValueError("a bug")


def full(job, device):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB\nand more")


def toy(*overrides):
    return recipe("competent", "workload.use=tests.train.toy:Toy", "device=cpu", "precision.mode=fp32", "log.skip=0",
                  *overrides)


def test_a_footprint_has_exact_bytes_and_a_time_for_each_step():
    found = footprint(toy("batch.micro=8"), 2, pairs)
    assert (found.micro, found.peak) == (8, STANDING + 8 * ROW) and len(found.ms) == 2


@pytest.mark.parametrize(("made", "sentence"), [
    (full, r"^micro-batch 16: CUDA out of memory\. Tried to allocate 3\.00 GiB$"),
    (killed, "^micro-batch 16: the host ran out of memory$")])
def test_running_out_of_memory_there_is_a_sentence_here(made, sentence):
    with pytest.raises(DoesNotFit, match=sentence):
        footprint(toy(), 1, made)


def test_a_mistake_is_not_taken_for_a_lack_of_memory():
    with pytest.raises(LfError, match="ValueError: a bug") as caught:
        footprint(toy(), 1, mistaken)
    assert not isinstance(caught.value, DoesNotFit)


def test_the_largest_micro_batch_within_a_declared_limit_is_found_and_the_next_one_does_not_fit():
    job = toy(f"batch.limit_gib={(STANDING + 21.5 * ROW) / 2**30}")
    found = largest(job, most=64, pairs=pairs)
    assert found.largest == 21 and len(found.points) == 3
    assert (found.model.fixed, found.model.per_sample) == (STANDING, ROW)
    with pytest.raises(DoesNotFit, match="micro-batch 22: emulated: tried to save"):
        footprint(job.with_("batch.micro=22"), 1, pairs)
