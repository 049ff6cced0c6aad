"""Batch sizes: memory as a line from two probes, the search's end, accumulation at one effective batch, named rules."""

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.levers.batch import DoesNotFit, MemoryModel, accumulated, larger, memory_model, search
from lfhelpers.levers.limit import Budget, limited
from lfhelpers.recipe import recipe

BYTES = st.integers(1, 10**12)
GIB = 2**30


@given(fixed=BYTES, per_sample=st.integers(1, 10**10), micro=st.integers(1, 4096))
def test_two_probes_give_the_line_and_its_end(fixed, per_sample, micro):
    model = memory_model(lambda count: fixed + per_sample * count, most=2**40)
    assert model.peak(micro) == pytest.approx(fixed + per_sample * micro)
    assert model.largest(model.peak(micro)) == micro
    assert model.largest(model.peak(micro) - 0.5 * per_sample) == micro - 1
    assert model.largest(0) == 0


def test_where_the_update_sets_the_peak_larger_probes_are_taken():
    """AdamW's temporaries need 1000 bytes, so that up to 9 samples look alike."""
    model = memory_model(lambda micro: max(1000, 100 + 100 * micro))
    assert (model.fixed, model.per_sample) == (pytest.approx(100), pytest.approx(100))
    flat = memory_model(lambda micro: 1000, most=16)
    assert flat == MemoryModel(1000, 0) and flat.largest(999) == 0 and flat.largest(1000) == sys.maxsize


@given(per_sample=st.integers(20, 1000), end=st.integers(0, 3000), most=st.integers(2, 2000))
def test_the_search_finds_the_end_of_a_line_in_three_probes(per_sample, end, most):
    limit = 10_000 + per_sample * (end + 0.5)
    found = search(lambda micro: 10_000 + per_sample * micro, limit, most)
    assert found.largest == min(end, most)
    assert len(found.points) <= 3
    assert all(point.fits == (point.micro <= end) for point in found.points)


@given(end=st.integers(1, 1000), bend=st.floats(0.5, 2.0))
def test_where_the_line_bends_the_search_ends_within_a_sixteenth(end, bend):
    """Real allocators and kernels don't keep to a line: a probe at its end decides, and the crash is a point."""
    asked = []

    def probe(micro):
        asked.append(micro)
        if micro > end:
            raise DoesNotFit("tried to allocate")
        return 1000 + 100 * micro**bend
    found = search(probe, 10**9, most=1024)
    assert max(micro for micro in asked if micro <= end) == found.largest and len(asked) == len(set(asked)) <= 14
    assert found.largest >= min(end, 1024) * 15 / 16 - 1
    failed = [point for point in found.points if not point.fits]
    assert all("does not fit: needs" in point.text and "tried to allocate" in point.text for point in failed)
    if failed:
        assert min(point.micro for point in failed) - found.largest <= max(1, found.largest // 16)


def test_a_point_that_does_not_fit_says_what_it_would_need():
    def probe(micro):
        if micro > 10:
            raise DoesNotFit("micro-batch 12: out of memory")
        return (2 + micro) * GIB
    found = search(probe, 14 * GIB)
    assert [point.text for point in found.points[:3]] == [
        "3 GiB", "4 GiB", "does not fit: needs about 14 GiB (micro-batch 12: out of memory)"]
    assert found.largest == 10
    nothing = search(lambda micro: probe(micro + 10), 14 * GIB)
    assert nothing.largest == 0 and nothing.model is None and "more than there is" in nothing.points[0].text


@pytest.mark.parametrize(("largest", "split"), [(64, (48, 1)), (47, (24, 2)), (16, (16, 3)), (5, (4, 12)),
                                                (1, (1, 48))])
def test_accumulation_holds_the_effective_batch(largest, split):
    job = accumulated(recipe("competent", "batch.micro=16", "batch.accumulate=3"), largest)
    assert (job.batch.micro, job.batch.accumulate) == split
    with pytest.raises(LfError, match="not even one sample"):
        accumulated(job, 0)


@pytest.mark.parametrize(("rule", "rate"), [("keep", 1e-4), ("sqrt", 2e-4), ("linear", 4e-4)])
def test_a_larger_effective_batch_is_of_class_changed_under_a_named_rule(rule, rate):
    job = recipe("competent", "batch.micro=16", "steps=101")
    lever = larger(job, 32, 2, 1e-4, rule)
    pulled = lever.pull(job)
    assert lever.equivalence == "changed" and rule in lever.name and "0.0001 becomes" in lever.why
    assert (pulled.optimizer.lr, pulled.steps) == (pytest.approx(rate), 26)


def test_a_rule_is_never_taken_silently_and_never_needed_for_the_same_batch():
    job = recipe("competent", "batch.micro=16")
    with pytest.raises(LfError, match=r"4 times.*keep, sqrt, linear"):
        larger(job, 64, 1, 1e-4)
    same = larger(job, 4, 4, 1e-4)
    assert same.equivalence == "reordered" and same.pull(job).optimizer.lr is None


def test_the_emulated_limit_counts_what_forward_saves_and_backward_frees():
    """16 weights stand with gradient and two moments, and a forward of 8 rows saves two tensors of 8 x 4."""
    model = torch.nn.Linear(4, 4, bias=False)
    x = torch.ones(8, 4)
    with Budget(model) as budget:
        loss = model(x).exp().sum()
        assert (budget.standing, budget.live) == (16 * (4 + 4 + 8), 2 * 8 * 4 * 4), "x, and exp's result"
        loss.backward()
        del loss
    assert budget.live == 0 and budget.peak == 256
    with budget:
        model(x).exp()  # never gets a backward, as after a failure
    assert budget.live == 0
    need = budget.standing + budget.peak
    with limited(need / GIB, model, torch.device("cpu")):
        model(x).exp().sum().backward()
    with pytest.raises(torch.OutOfMemoryError, match="emulated"), limited((need - 1) / GIB, model, torch.device("cpu")):
        model(x).exp()
    with pytest.raises(LfError, match=r"limit_gib.*alone need"), limited(255 / GIB, model, torch.device("cpu")):
        pass
    assert math.isfinite(model.weight.grad.sum())
