"""A step that runs out of memory is made again in smaller micro-batches: same samples, same effective batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers import runs
from lfhelpers.diagnose import diagnose
from lfhelpers.errors import LfError
from lfhelpers.measure.clock import StepClock
from lfhelpers.quality.gates import band
from lfhelpers.recipe import recipe
from lfhelpers.train.cuts import Cuts
from lfhelpers.train.loop import train
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import identify
from lfhelpers.train.replan import Replan, recomputation
from lfhelpers.train.step import Step
from tests.train.replan_ranks import AHEAD, PLANTED
from tests.train.replanning import Planted, pairs_of
from tests.train.toy import ALONE, batches

ROOT = Path(__file__).resolve().parents[2]
CASES = [*PLANTED, *(f"{name}, ahead" for name in AHEAD)]


def two_ranks(shards, folder, device):
    """(what rank 0 of one job on two ranks prints, the run that it has trained)."""
    made = recipe("competent", f"data.path={shards}", "workload.use=tests.train.replanning:OnRankOne",
                  "batch.micro=8", "steps=12", "data.workers=0", "data.augment=false", "log.skip=2", "log.probe=false",
                  f"device={device}", "precision.mode=fp32", "batch.replan=true")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LFHELPERS_RUNS", str(folder))
        run = runs.create(made)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.train.replan_ranks", str(run.path), device], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))), run


@pytest.fixture(scope="module")
def job(toy_shards, tmp_path_factory):
    return two_ranks(toy_shards, tmp_path_factory.mktemp("replan"), "cpu")


@pytest.fixture(scope="module")
def ranks(job):
    return job[0]


@pytest.mark.parametrize("micro", [4, 2, 1, 3])
def test_accumulation_over_two_ranks_is_one_large_batch(ranks, micro):
    """8 samples a rank at once, in 2, 4 and 8 micro-batches, and in threes with an uneven tail; all in float64."""
    weights, loss = ranks["accumulation"][str(micro)]
    assert weights < 1e-8 and abs(loss) < 1e-6


def test_ranks_agree_on_the_smallest_micro_batch_that_they_found(ranks):
    assert ranks["agreed"] == [6, 6]


@pytest.mark.parametrize("case", CASES)
def test_one_of_two_ranks_runs_out_of_memory_and_nothing_is_lost(ranks, case):
    seen = ranks["planted"][case]
    assert seen["ids"] == ranks["expected"], "each sample of each step once, on its rank"
    assert seen["weights"] < 1e-12 and seen["alike"]
    assert max(seen["losses"]) < 1e-6 and seen["skipped"] == 0


@pytest.mark.parametrize("case", CASES)
def test_events_name_the_step_the_rank_and_what_was_done(ranks, case):
    events = ranks["planted"][case]["events"]
    planted = PLANTED[case.removesuffix(", ahead")]
    assert [event["micro"] for event in events] == ([2, 1] if "above" in planted else [2] if planted else [])
    assert all(event["ranks"] == [1] and event["step"] == planted["step"] + 1 for event in events)
    assert all("Tried to allocate 2.00 GiB" in event["why"] for event in events)


def test_a_run_on_two_ranks_goes_on_as_if_nothing_had_happened(job, runs_root):
    """From its sixth step on, rank 1 has no room for more than four rows."""
    run = job[1]
    whole = runs.create(run.recipe.with_("batch.micro=16", "batch.replan=false", "workload.use=tests.train.toy:Toy"))
    train(whole.recipe, whole, ALONE)
    ours, expected = (torch.tensor([row["loss"] for row in each.steps()], dtype=torch.float64) for each in (run, whole))
    assert band(ours, expected).passes and ours.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert [row["samples"] for row in run.steps()] == [row["samples"] for row in whole.steps()]
    assert run.summary["replan"]["effective_batch"] == 16 and run.summary["steps"]["skipped"] == 0
    assert [(each["step"], each["ranks"], each["micro"]) for each in run.summary["replan"]["events"]] == [(6, [1], 4)]


def test_a_run_within_an_emulated_limit_uses_smaller_micro_batches(toy_run):
    """928 bytes stand, 256 are the batch's, of which pieces are views, and each row saves 44: 1450 hold six rows."""
    whole, _ = toy_run("batch.micro=16", "precision.mode=fp32")
    limited = ("batch.micro=16", "precision.mode=fp32", f"batch.limit_gib={1450 / 2**30}")
    with pytest.raises(torch.OutOfMemoryError, match="emulated: tried to save"):
        toy_run(*limited)
    run, summary = toy_run(*limited, "batch.replan=true")
    assert [event["micro"] for event in summary["replan"]["events"]] == [8, 4]
    assert "note: re-planned as memory ran short or grew, at the same effective batch, 2 in all (the newest: step 1: " \
        "2 micro-batches of 8 for each of 16, step 1: 4 micro-batches of 4 for each of 16)" in diagnose(run).table()
    assert [row["loss"] for row in run.steps()] == pytest.approx([row["loss"] for row in whole.steps()], rel=1e-5)


def planted(*overrides, recompute=lambda: False, **place):
    """(Replan, its model, its workload) of a step in this process alone."""
    job = recipe("competent", "precision.mode=fp32", "steps=5", "batch.replan=true", *overrides)
    workload = Planted(job, **place)
    torch.manual_seed(0)
    model = workload.model()
    precision = Precision(job.precision, ALONE.device)
    optimizer = Optimizer(job, model, 1e-2, precision.scaler)
    step = Step(workload, model, optimizer, precision, ALONE, StepClock(ALONE.device), job.batch.micro, [workload],
                frozen_ahead=job.frozen.ahead)
    return Replan(step, job, model, optimizer, ALONE, recompute), model, workload


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("pieces", [2, 4, 8, 3, 16])
def test_the_gradient_of_a_cut_batch_is_that_of_the_whole(pieces):
    """In float64; three pieces of 16 rows have an uneven tail, and one sample in five is masked."""
    found = []
    for cut_into in (1, pieces):
        replan, _, workload = planted()
        workload.gradients_ready = lambda step, model: found.append(torch.cat(
            [parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad]))
        (batch, draws), = pairs_of(1, 16, 16, 0, 1)
        batch["valid"][::5] = 0
        values = replan(0, Cuts(iter([(batch, draws)]), cut_into), 1)
    assert torch.allclose(found[0], found[1], rtol=1e-12, atol=1e-12) and found[0].abs().max() > 0.1
    assert values[1] == pytest.approx(float((batch["weight"] * batch["valid"]).sum()))


def test_what_does_not_fit_one_by_one_recomputes_and_then_ends_the_run_in_a_sentence():
    once = iter([True])
    replan, _, _ = planted("batch.micro=2", at="forward", step=0, above=0, recompute=lambda: next(once, False))
    with pytest.raises(LfError, match=r"step 1 does not fit even one sample at a time: CUDA out of memory\. Tried"):
        replan(0, Cuts(pairs_of(1, 2, 2, 0, 1)), 1)
    assert [event["micro"] for event in replan.events] == [1, 1]
    assert replan.events[-1]["done"] == "blocks recompute"


def test_recomputation_is_offered_once_and_only_where_blocks_run_eagerly():
    from lfhelpers.levers.activations import recomputes

    job, block = recipe("competent"), torch.nn.Sequential(torch.nn.Linear(2, 2))
    again = recomputation(job, [block], ALONE)
    assert (again(), recomputes(block), again()) == (True, True, False)
    assert not recomputation(job.with_("activations.plan=all"), [block], ALONE)()
    statistics = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    assert not recomputation(job, [statistics], ALONE)() and not recomputes(statistics)


@pytest.mark.parametrize("tensors", [1, 2, 3], ids=["at the first state", "in the middle of one", "at a later one"])
def test_an_update_without_memory_for_its_states_is_made_again(monkeypatch, tensors):
    """AdamW makes two moments a parameter in its first step: one that has only one of them would never be updated."""
    steady, expected, _ = planted()
    replan, model, _ = planted()
    real, left = torch.zeros_like, [tensors]

    def short(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise torch.OutOfMemoryError("no room for a moment")
        return real(*args, **kwargs)
    pairs = [list(pairs_of(2, 8, 8, 0, 1)) for _ in range(2)]
    steady(0, cuts := Cuts(iter(pairs[0])), 1), steady(1, cuts, 1)
    cuts = Cuts(iter(pairs[1]))
    monkeypatch.setattr(torch, "zeros_like", short)
    replan(0, cuts, 1)
    assert left[0] < 0, "it was asked again"
    monkeypatch.undo()
    replan(1, cuts, 1)
    assert torch.equal(weights(model), weights(expected))


@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_cuts_hand_out_each_row_once_whatever_is_tried_again(rows, pieces, steps, data):
    source = batches(sum(steps), rows)
    cuts = Cuts(iter(source))
    for number, pairs in enumerate(steps):
        for _ in range(data.draw(st.integers(0, 2))):  # attempts that fail somewhere
            for _ in range(data.draw(st.integers(0, pairs * cuts.pieces))):
                next(cuts)
            cuts.again(min(pieces, rows))
        got = [next(cuts) for _ in range(pairs * cuts.pieces)]
        cuts.done(pairs)
        expected = source[sum(steps[:number]):sum(steps[:number + 1])]
        for part, name in ((0, "x"), (1, "noise")):
            assert torch.equal(*(torch.cat([pair[part][name] for pair in pairs]) for pairs in (got, expected)))
    assert next(cuts, None) is None


@pytest.mark.parametrize(("overrides", "sentence"), [
    (["graph.scope=step"], "graph.scope='none'"),
    (["compile.scope=blocks", "compile.mode=max-autotune"], "max-autotune-no-cudagraphs"),
    (["precision.weights=bf16"], "round the sum"),
    (["optimizer.fused=false"], "half updated"),
    (["ddp.static_graph=true"], "still owes"),
    (["ddp.hook=bf16"], "could not come back"),
    (["ddp.shard_optimizer=true"], "could not come back"),
    (["data.mixup=0.2"], "blends rows across the cut"),
])
def test_what_could_not_be_made_again_is_refused_by_name(overrides, sentence):
    with pytest.raises(LfError, match=f"batch.replan.*{sentence}"):
        recipe("competent", "batch.replan=true", *overrides)
    assert recipe("competent", "batch.replan=false", *overrides)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("ahead", ["false", "true"])
def test_a_gpu_that_really_runs_out_of_memory_goes_on_with_the_same_losses(toy_job, ahead):
    """64 rows save 512 MiB, and the card's share is 400: two micro-batches of 32 fit, or four of 16."""
    losses, summaries = [], []
    for overrides in ((), ("batch.replan=true", f"batch.limit_gib={400 / 1024}")):
        run = runs.create(toy_job("workload.use=tests.train.replanning:Wide", "batch.micro=64", "device=cuda",
                                  "steps=6", "log.probe=false", "precision.mode=fp32", f"frozen.ahead={ahead}",
                                  *overrides))
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        summaries.append(train(run.recipe, run, identify("cuda")))
        losses.append(torch.tensor([row["loss"] for row in run.steps()], dtype=torch.float64))
    assert summaries[0]["memory"]["peak_gib"] > 0.5 and summaries[1]["memory"]["reserved_gib"] <= 400 / 1024
    assert {event["step"] for event in summaries[1]["replan"]["events"]} == {1}, "it did not fit, and then it did"
    assert band(losses[1], losses[0], last=6).passes


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_two_gpus_go_on_over_nccl_when_one_of_them_runs_out_of_memory(toy_shards, tmp_path):
    seen, run = two_ranks(toy_shards, tmp_path, "cuda")
    for name, case in seen["planted"].items():
        assert case["ids"] == seen["expected"] and case["alike"] and case["skipped"] == 0, name
        assert case["weights"] < 1e-9 and max(case["losses"]) < 1e-5, name
    assert [(each["step"], each["ranks"]) for each in run.summary["replan"]["events"]] == [(6, [1])]
