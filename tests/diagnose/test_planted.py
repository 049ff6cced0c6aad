"""The planted bottlenecks cost what they say, leave the loss as it was, and the report on a real run names each."""

import functools
import gc
import weakref

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from lfhelpers import runs
from lfhelpers.data.shards import write
from lfhelpers.diagnose import diagnose, planted
from lfhelpers.measure.probe import Probe
from lfhelpers.recipe import recipe
from lfhelpers.train.loop import train
from lfhelpers.train.ranks import Ranks, alone
from lfhelpers.workloads.vla.tabletop.dataset import sample
from lfhelpers.workloads.vla.workload import Vla
from tests.diagnose.test_report import CLEAN_CPU, finished, names
from tests.workloads.vla_batches import batch, built, job, members

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tabletop") / "shards"
    write(folder, functools.partial(sample, 0), 32, shard_mb=2, progress=False)
    return folder


def loss_of(workload, samples=4):
    """(loss, what a probe counted) of one forward on the same weights, batch and noise."""
    model = built(workload)
    draws = workload.draws(samples, torch.Generator().manual_seed(0))
    with Probe(CPU, 1) as probe:
        total, weight = workload.loss(model, batch(workload, samples), draws)
    return (total / weight).item(), probe.result()


def test_planted_work_changes_no_loss_and_can_be_counted():
    expected, clean = loss_of(Vla(job()))
    tiny, many = loss_of(planted.TinyOperators(job()))
    guarded, read = loss_of(planted.HostReads(job()))
    assert (tiny, guarded) == (expected, expected)
    numbers = 4 * Vla(job()).size.action.horizon * Vla(job()).size.action.action_dim
    assert many["operators"]["total"] - clean["operators"]["total"] >= 2 * numbers
    assert read["host_reads"] - clean["host_reads"] == len(list(Vla(job()).model().parameters()))


def test_a_slow_sample_is_the_same_sample_later(monkeypatch):
    slept = []
    monkeypatch.setattr(planted.time, "sleep", slept.append)
    late, prompt = planted.SlowLoader(job()).sample(members(3)), Vla(job()).sample(members(3))
    assert slept == [planted.SLOW_SECONDS]
    assert late.keys() == prompt.keys() and all(torch.equal(late[name], prompt[name]) for name in prompt)


def test_the_guard_finds_what_it_is_there_for():
    workload = planted.HostReads(job())
    model = built(workload)
    with torch.no_grad():
        model.head.action_decoder.first.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="is not finite"):
        workload.loss(model, batch(workload, 2), workload.draws(2, torch.Generator()))


def test_a_slow_exchange_holds_each_message_back_and_changes_no_gradient(monkeypatch):
    """Every byte of the trained parameters at 4 GB/s; nothing where the model isn't under DDP."""
    slept = []
    monkeypatch.setattr(planted.time, "sleep", slept.append)
    workload = planted.SlowExchange(job("workload.options.link_gb_s=4.0"))
    model = built(workload)
    given, draws = batch(workload, 2), workload.draws(2, torch.Generator().manual_seed(0))
    expected = gradients(workload, model, given, draws)
    assert slept == []
    with alone():
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        for _ in range(2):
            found = gradients(workload, wrapped, given, draws)
        watched = weakref.ref(wrapped)
        del wrapped
        gc.collect()
        assert watched() is None, "a workload that holds it would let it outlive its group"
    trained = sum(value.nbytes for value in model.parameters() if value.requires_grad)
    assert sum(slept) == pytest.approx(2 * trained / 4e9)
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def gradients(workload, model, given, draws):
    """By name, of one forward and backward."""
    model.zero_grad(set_to_none=True)
    total, weight = workload.loss(model, dict(given), dict(draws))
    (total / weight).backward()
    return {name.removeprefix("module."): value.grad.clone() for name, value in model.named_parameters()
            if value.grad is not None}


@pytest.fixture
def trained(shards, runs_root):
    """Trains a planted workload: its run."""
    def train_one(name, loader, steps):
        run = runs.create(recipe("competent", f"workload.use=lfhelpers.diagnose.planted:{name}", f"data.path={shards}",
                                 f"data.loader={loader}", f"steps={steps}", "data.workers=1", "log.skip=2",
                                 "device=cpu"))
        train(run.recipe, run, Ranks(0, 1, CPU))
        return run
    return train_one


@pytest.mark.parametrize(("name", "cause"), [("TinyOperators", "tiny operators"), ("HostReads", "host reads")])
def test_what_a_run_counts_names_each_in_a_healthy_step_of_the_record(name, cause, trained):
    """Counts are exact on a busy machine, too; times are those on record, as is the price of an operator."""
    counted, tiny_us = trained(name, "synthetic", steps=2).read("probe.json"), CLEAN_CPU[0]["probe"]["tiny_operator_us"]
    top = [row | {"self_ms": row["calls"] * tiny_us / 1e3} for row in counted["top"]]
    step = CLEAN_CPU[0] | {"probe": counted | {"tiny_operator_us": tiny_us, "top": top}}
    assert names(finished(**step)) == [cause]


@pytest.mark.alone
@pytest.mark.parametrize(("name", "loader", "cause"), [
    ("SlowLoader", "webdataset", "data wait"), ("TinyOperators", "synthetic", "tiny operators"),
    ("HostReads", "synthetic", "host reads")])
def test_the_report_names_each_first(name, loader, cause, trained):
    assert diagnose(trained(name, loader, steps=6)).findings[0].name == cause
