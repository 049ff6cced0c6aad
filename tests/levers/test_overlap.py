"""Buckets, unused parameters and what crosses between two real gloo ranks, in every combination of levers."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lfhelpers.errors import LfError
from lfhelpers.levers.overlap import freeze, giants, limits, settling, unused
from lfhelpers.recipe import recipe
from lfhelpers.train.agreement import listed
from lfhelpers.train.communication import of_timers

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # Inductor compiles for each rank, on cores that others use
ROOT = Path(__file__).resolve().parents[2]
COMBINATIONS = [f"{accumulate} {static} {compiled}" for accumulate, static, compiled in
                itertools.product((1, 4), (False, True), (False, True))]


@pytest.fixture(scope="module")
def seen():
    """What tests.levers.overlap_ranks saw."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.levers.overlap_ranks"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_each_step_exchanges_every_bucket_once_and_its_gradients_are_those_of_the_full_batch(seen, combination):
    """accumulation x static graph x compiled blocks, in float64 against one process (case 31).

    A static graph with accumulation exchanges in its first two passes as well (pytorch issue 187732).
    """
    found, settled = seen["combinations"][combination], combination.startswith("4 True")
    assert found["buckets"] == 3 == len(found["exchange"]["buckets_mb"])
    assert found["all_reduces"] == [9 if settled else 3, 3, 3, 3, 3]
    assert found["difference"] < 1e-12 and found["weights_differ"] == []


@pytest.mark.parametrize("combination", ["in place 1 False", "in place 4 True"])
def test_in_place_sends_as_many_messages_and_needs_no_buckets(seen, combination):
    found = seen["combinations"][combination]
    assert found["all_reduces"] == [3] * 5 and found["buckets"] == 3 == len(found["exchange"]["buckets_mb"])
    assert found["difference"] < 1e-12 and found["weights_differ"] == []


def test_a_model_that_is_wrapped_anew_exchanges_once(seen):
    """And all ranks begin with the weights of rank 0, though they were made unlike. The bare model sends nothing."""
    assert seen["wrapped_anew"] == {"messages": 1, "of_the_bare_model": 0, "weights_differ": [], "grads_differ": [],
                                    "groups": [12]}


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_exposed_time_is_transfer_and_waiting(seen, combination):
    exchange = seen["combinations"][combination]["exchange"]
    assert exchange["exposed_ms"] == pytest.approx(exchange["transfer_ms"] + exchange["waiting_ms"])
    assert exchange["source"] == "DDP's timers" and exchange["transfer_ms"] > 0


def test_both_versions_by_hand_give_the_gradients_of_ddp(seen):
    """One message a parameter, or one a bucket in each of two steps."""
    found = seen["by_hand"]
    assert found["differences"] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert found["messages"] == [found["parameters"], 2 * found["buckets"]]


def test_unused_parameters_are_named_and_freezing_them_lets_the_run_go_on(seen):
    """Case 30."""
    first, apart = seen["unused"]["said"]
    assert first.startswith("parameters idle.weight, idle.bias get no gradient, and DDP would wait for them for ever: "
                            "set ddp.freeze_unused=true")
    assert seen["unused"]["steps"] == 3
    assert apart.startswith("parameters idle.bias, idle.weight get a gradient on some ranks and none on others")


def test_models_that_depend_on_the_rank_are_named_on_every_rank(seen):
    """Case 37."""
    shape, count = seen["unlike"]
    assert "rank 0 has 0.weight [5, 2] torch.float32 where rank 1 has 0.weight [6, 2] torch.float32" in shape
    assert "rank 0 has no parameter more where rank 1 has 1.weight [2, 2] torch.float32" in count


def test_ranks_start_with_equal_weights_and_unequal_dropout(seen):
    assert seen["masks_differ"]
    assert seen["differ"] == ["other"], "tensors that differ between ranks are named, and only those"


def test_a_sweep_gives_every_rank_the_same_link(seen):
    assert seen["links_equal"] == 1 and seen["link"]["ranks"] == 2
    assert seen["repeats"] == {"4096": 3, "16384": 3, "65536": 3, "262144": 3}


@pytest.mark.parametrize(("overrides", "expected"), [
    ([], ()), (["ddp.bucket_mb=100"], (4.0, 100.0)), (["ddp.bucket_mb=2"], (2.0,)),
    (["ddp.bucket_list_mb=[1, 50, 8]"], (1.0, 50.0, 8.0)),
])
def test_one_size_for_all_keeps_a_small_first_bucket(overrides, expected):
    assert limits(recipe("competent", *overrides).ddp) == expected


def test_tensors_above_the_largest_limit_are_shown():
    model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 3072), nn.Linear(4096, 4096))
    freeze(model, ["2.weight"])
    assert giants(model.named_parameters(), (1.0, 4.0)) == [("1.weight", 12.0)]
    assert giants(model.named_parameters(), ()) == []


def test_a_dry_run_leaves_no_trace():
    torch.manual_seed(1)
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "idle": nn.Linear(3, 3)})
    state = torch.get_rng_state()
    assert unused(model, lambda: nn.functional.dropout(model["used"](torch.ones(2, 3)), 0.5).sum()) == [
        "idle.weight", "idle.bias"]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert freeze(model, ["idle.weight", "idle.bias"]) == 12 and not model["idle"].weight.requires_grad


def test_a_model_without_ddp_needs_no_settling():
    assert settling(nn.Linear(2, 2)) == 0


def test_transfer_is_the_least_of_each_iteration_not_of_the_means():
    """Two ranks that are late in turns: on average both wait, and the transfer is short."""
    found = of_timers([{4: 1.0, 5: 9.0, 6: 2.0}, {4: 9.0, 5: 1.0}])
    assert found == {"exposed_ms": 5.0, "transfer_ms": 1.0, "waiting_ms": 4.0}
    assert of_timers([{}, {4: 1.0}]) == {"exposed_ms": 0.0, "transfer_ms": 0.0, "waiting_ms": 0.0}


def test_long_lists_of_names_are_cut():
    assert listed([f"p{place}" for place in range(11)]) == "parameters p0, p1, p2, p3, p4, p5, p6, p7 and 3 more"
    assert listed(["bias"]) == "parameter bias"


def test_the_search_and_the_dry_run_exclude_each_other():
    with pytest.raises(LfError, match=r"ddp.freeze_unused makes the search of ddp.find_unused needless"):
        recipe("as_found", "ddp.freeze_unused=true")
