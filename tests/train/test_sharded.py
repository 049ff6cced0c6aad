"""ZeRO-1: two ranks that update a share each are as good as two that update everything."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfhelpers.errors import LfError
from lfhelpers.recipe import recipe
from lfhelpers.runs import Run
from lfhelpers.train import checkpoint
from lfhelpers.train.adamw import store_in_bf16
from lfhelpers.train.optimizer import Optimizer
from lfhelpers.train.precision import Precision
from lfhelpers.train.ranks import Ranks
from lfhelpers.train.sharded import Shards, deal
from tests.train.exchange_job import DEVICES, seen
from tests.train.toy import ALONE, Toy


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 8))
def test_everything_is_dealt_out_and_no_load_is_ahead_by_more_than_one_parameter(sizes, ranks):
    owners = deal(sizes, ranks)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max(sizes)


def test_neighbours_of_one_size_take_turns():
    """So each bucket has something for every rank, and traffic goes both ways at any time."""
    assert deal([4, 4, 4, 4, 4, 4], 3) == [0, 1, 2, 0, 1, 2]


def test_dtypes_are_dealt_out_by_themselves_and_too_few_parameters_are_refused():
    low = [torch.nn.Parameter(torch.zeros(8, dtype=torch.bfloat16)) for _ in range(2)]
    high = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    both = [low[0], high[0], high[1], low[1]]
    assert Shards(both, Ranks(0, 2, torch.device("cpu"))).owners == [0, 0, 1, 1]
    with pytest.raises(LfError, match="4 trained parameters can't be dealt out to 5 ranks"):
        Shards(both, Ranks(0, 5, torch.device("cpu")))


@pytest.mark.parametrize("device", DEVICES)
def test_sharded_equals_unsharded_to_the_bit_while_nothing_is_clipped(device):
    """fp32 weights with torch's fused AdamW, and bf16 weights with fp32 masters."""
    for name in ("not clipped", "bf16 weights"):
        assert seen(device)[f"sharded, {name}"]["difference"] == 0, name
        assert seen(device)[f"sharded, {name}"]["ranks_equal"]


@pytest.mark.parametrize("device", DEVICES)
def test_where_it_clips_only_the_norm_is_summed_in_another_order(device):
    assert seen(device)["sharded"]["difference"] < 1e-6
    assert seen(device)["sharded"]["loss"] == pytest.approx(seen(device)["none, 30 steps"]["loss"], rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sharded_run_is_resumed_to_the_bit_with_and_without_shards(device):
    assert seen(device)["sharded, not clipped"]["resumed_equal"]
    assert seen(device)["unsharded_from_sharded"]


@pytest.mark.parametrize("kind, fields", [("not clipped", ()),
                                          ("bf16 weights", ("precision.mode=bf16", "precision.weights=bf16"))])
def test_its_checkpoint_is_that_of_an_unsharded_run_and_one_rank_goes_on_from_it(kind, fields):
    runs = [run_of(f"{name}, {kind}") for name in ("none", "sharded")]
    states = [torch.load(checkpoint.find(run)[-1] / "state.pt", weights_only=True)["optimizer"] for run in runs]
    tensors = [list(_tensors(state)) for state in states]
    assert len(tensors[0]) > 8 and all(torch.equal(*pair) for pair in zip(*tensors, strict=True))
    job = recipe("competent", "precision.mode=fp32", "device=cpu", *fields)
    model, masters = Toy(job).model(), None
    if fields:
        masters = store_in_bf16(model)
    optimizer = Optimizer(job, model, 1e-2, Precision(job.precision, ALONE.device).scaler, masters=masters)
    checkpoint.load(runs[1], model, optimizer, ALONE)
    assert all(torch.equal(*pair) for pair in zip(_tensors(optimizer.state_dict()), tensors[1], strict=True))


def test_half_of_the_bytes_go_with_the_gradients_and_half_with_the_weights():
    """The toy has 32 + 8 + 16 + 2 numbers: the first matrix is one rank's share, all else the other's, padded to 32."""
    assert seen("cpu")["sharded"]["sent"] == [4 * 26 + 4 * 32] * 2
    assert seen("cpu")["none"]["sent"] == [4 * 58] * 2


def run_of(name):
    return Run(Path(seen("cpu")[name]["run"]))


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            if key != "lr":  # set anew in every step
                yield from _tensors(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
